"""Client side of a device: the RPC device, its connection and sessions, measuring, checking, probes."""
