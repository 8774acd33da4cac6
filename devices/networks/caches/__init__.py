"""Caches of language models that stay in the network: growing caches, and static caches of a fixed size."""
