"""Networks: from a model file to tasks, and from kernels to a compiled network that is loaded and timed."""
