"""The actors that do the work of a run, each in a process of its own, and what they hold."""
