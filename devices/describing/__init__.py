"""The sketches of many tasks: side by side, in child processes, each kept for the next run."""
