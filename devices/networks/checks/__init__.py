"""Checks of a compiled network against its framework, and of the inputs and outputs that such a check needs."""
