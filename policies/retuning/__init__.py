"""Decisions of the service that keeps networks tuned: the next action, its worth, and what may be published."""
