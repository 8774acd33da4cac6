"""The whole method against others and without parts of itself, and the time that a search takes."""
