"""Files that are written in one step, locked, or on another machine."""
