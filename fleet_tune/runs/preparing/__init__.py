"""What a run starts from: the network, its tasks, and the folder that it writes to."""
