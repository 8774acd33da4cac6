"""The host of a device: child processes, quiet windows, limits, priorities, hardware and its sensors."""
