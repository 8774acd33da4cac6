"""The Ray cluster of a run: an embedded one on this machine, or an existing one."""
