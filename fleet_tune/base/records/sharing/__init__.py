"""Records that several runs, machines and tools have: copies from store to store, files that travel, a server."""
