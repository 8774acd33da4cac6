"""Graph passes that run before a network is lowered, a package for each kind."""
