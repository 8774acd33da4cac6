"""Child processes: how they start, talk to their parent and end with it, and whose doing their end was."""
