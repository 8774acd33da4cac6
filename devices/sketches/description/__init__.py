"""How a trace becomes a symbolic sketch: its interpreter, accesses, loop nests, places and statements."""
