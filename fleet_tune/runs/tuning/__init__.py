"""The tuning of a run: its tasks are described, searched, and measured on the devices."""
