"""What talks to a device: the RPC device, its connection and sessions, measuring, checking, and the probes."""
