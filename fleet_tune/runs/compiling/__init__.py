"""From the best records to a compiled network that is checked and published."""
