"""From a trace to a symbolic sketch: interpreter, accesses, loop nests, locations of blocks, statements."""
