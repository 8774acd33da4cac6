"""Descriptions of the sketches of many tasks, made side by side in child processes and cached on disk."""
