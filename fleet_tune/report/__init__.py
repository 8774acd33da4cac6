"""What a person reads: of runs, devices, datasets and cost models."""
