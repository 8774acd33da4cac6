"""The host that a device is on: child processes, quiet windows, limits, priorities, what the machine is and how it
fares."""
