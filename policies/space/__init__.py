"""Spaces of candidates: sampling of decision vectors, and the variants of a sketch."""
