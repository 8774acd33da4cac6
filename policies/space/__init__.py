"""What candidates there are: sampling of decision vectors, and the variants of a sketch."""
