"""Decisions about measurements: their ends, finalists, the speed of a device and the states of its health."""
