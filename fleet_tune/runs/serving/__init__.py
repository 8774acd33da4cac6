"""A PostgreSQL server of our own for the store of a team: its folder, its process and its keys."""
