"""One run: from its request to compiled networks."""
