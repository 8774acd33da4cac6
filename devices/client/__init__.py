"""What talks to a device: the RPC device, its sessions, its fingerprint and the probe kernels."""
