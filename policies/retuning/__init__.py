"""What keeps networks tuned for months: what is done next, what that is worth, and what may be published."""
