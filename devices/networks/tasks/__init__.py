"""From a network to tasks: the graph pipeline, one task for each distinct workload, and tiles of rows."""
