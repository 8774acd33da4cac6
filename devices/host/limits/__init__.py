"""Limits of a process on its host: memory, files, accounts, CPUs, real-time priority."""
