"""Decisions about measurements: when they end, finalists, the speed of a device and the states of its health."""
