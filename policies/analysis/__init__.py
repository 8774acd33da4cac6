"""Cost of a candidate, in closed form: loop nests, quantities, Pruner's symbols, and the analyzers of CPUs and
CUDA."""
