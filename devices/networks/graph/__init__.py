"""What is done to the graph of a network before it is lowered, a subject a module, and names of the kernels' blocks."""
