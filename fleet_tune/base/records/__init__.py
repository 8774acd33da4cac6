"""Stored files: the record store, datasets, cost-model files, orders for devices."""
