"""Child processes that lower, compile and run networks, and the files in which networks travel to and from them."""
