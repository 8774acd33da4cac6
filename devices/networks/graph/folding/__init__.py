"""What is known when a network is lowered: constants, and values that are one number."""
