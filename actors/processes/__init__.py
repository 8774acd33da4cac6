"""The actors that do the work of a run, each in its own process, and the objects that they own."""
