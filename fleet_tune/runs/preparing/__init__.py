"""Preparation of a run: its network is lowered for each device class, and its tasks are looked up and described."""
