"""Networks of float32 in other precisions: one module for each kind, and the choice of one."""
