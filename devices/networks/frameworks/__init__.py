"""Networks in the frameworks that people use today."""
