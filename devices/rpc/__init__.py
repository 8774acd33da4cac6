"""What goes over the network: the RPC handshake, the tracker's protocol, and linking on the other side."""
