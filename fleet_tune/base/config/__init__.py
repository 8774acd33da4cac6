"""Files and options that people write: the fleet file, the line of a TOML key in it, and the checked request of a
run."""
