"""The scheduler of a run, its device executors and builder pool, its supervisor, and the heartbeats of all
processes."""
