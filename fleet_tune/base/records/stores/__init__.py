"""The record store: its file, who writes it and who reads it, and what a record is in it."""
