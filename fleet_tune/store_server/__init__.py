"""The PostgreSQL server of a team's store: its folder, its process and its keys. An annex: runs never import it."""
