"""Graph passes that run before a network is lowered, one subject for each module, and names of the kernels' blocks."""
