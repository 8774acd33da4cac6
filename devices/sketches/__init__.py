"""The design spaces of a task, and their description as plain values."""
