"""What earlier runs have found: records of a store, and models of other devices."""
