"""The Ray cluster that a run uses: its own on this machine, or one that is there."""
