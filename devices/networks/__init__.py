"""Networks: from the user's file to tasks, and from kernels to a compiled network that is loaded and timed."""
