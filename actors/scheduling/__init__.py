"""The scheduler of a run with its lanes and builders, its supervisor, and the heartbeats of all processes."""
