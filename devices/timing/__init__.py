"""Timing of kernels: the adaptive evaluator, and the arguments that kernels run on."""
