"""Child processes that lower, compile and run networks, and the files in which those travel to and from them."""
