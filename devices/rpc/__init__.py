"""The RPC protocol: handshake, keys, tracker, and linking on the device."""
