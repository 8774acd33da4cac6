"""Descriptions of the sketches of many tasks, made in parallel child processes and cached on disk."""
