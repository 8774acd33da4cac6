"""When a measurement ends, which finalists are measured again, how fast a device is now, and which state it is in."""
