"""Reports for people: on runs, devices, datasets and cost models."""
