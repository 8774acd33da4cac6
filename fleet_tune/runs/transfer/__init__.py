"""Cost models that a search starts from: trained on the records of other runs, or shipped with fleet-tune."""
