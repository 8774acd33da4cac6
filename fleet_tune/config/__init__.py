"""What people write: the fleet file, options, and where a TOML key stands."""
