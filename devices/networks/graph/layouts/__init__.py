"""Layouts of values: channels last, and transposes."""
