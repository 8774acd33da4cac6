"""Searches on recorded tasks: among the recorded candidates, or in the whole spaces with costs that a model imputes."""
