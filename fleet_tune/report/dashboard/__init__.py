"""``fleet-tune dashboard``: pages of runs, of a record store and of ``fleet-tune retune`` for a browser."""
