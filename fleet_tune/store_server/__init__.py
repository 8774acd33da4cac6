"""The PostgreSQL server of a team's store: its folder, its process and its keys. Runs never import it."""
