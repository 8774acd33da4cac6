"""What people write: the fleet file, and where a TOML key stands in it; and the request of a run, checked."""
