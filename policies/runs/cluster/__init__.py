"""A run among the machines of a cluster: which of them hosts what, when processes are asked for a sign of life, and
whose turn a device is that several runs use."""
