"""How a kernel is timed: the adaptive evaluator and the arguments that it runs on."""
