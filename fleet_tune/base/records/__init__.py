"""What is kept in files: the record store, datasets, cost-model files, orders for devices."""
