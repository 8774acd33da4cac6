"""Compiled networks: their folders and files, and the network that is loaded from one."""
