"""What a candidate costs, in closed form: loop nests, quantities, Pruner's symbols, and the analyzers of CPUs and
CUDA."""
