"""Child processes: their start, their channel to the parent, their end and its cause."""
