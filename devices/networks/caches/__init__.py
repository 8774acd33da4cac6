"""Caches of language models that stay in the network: those that grow, and those of a fixed size."""
