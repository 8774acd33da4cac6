"""What runs on a device: the server, its session processes, the functions that they offer, and its registration."""
