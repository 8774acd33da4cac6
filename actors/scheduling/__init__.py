"""The scheduler of a run with the executors of devices and the builders, its supervisor, and the heartbeats of all
processes."""
