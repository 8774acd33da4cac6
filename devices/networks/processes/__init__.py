"""Child processes that lower, compile and run networks, and the files that carry networks to and from them."""
