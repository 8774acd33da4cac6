"""The seconds of a run: how long it may tune, when it looks again at something, what its devices do with their time."""
