"""Ports that programs listen on unless another one is given."""

SERVER_PORT = 9090
"""Port of a device server."""
