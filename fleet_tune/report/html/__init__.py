"""``fleet-tune report``: what a run did, as one HTML file."""
