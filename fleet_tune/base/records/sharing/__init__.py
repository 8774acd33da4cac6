"""Sharing of records between runs, machines and tools: copies from store to store, exported files, a server."""
