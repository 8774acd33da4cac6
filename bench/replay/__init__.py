"""Searches of recorded tasks: among the recorded candidates, and in the whole spaces with costs that are filled in."""
