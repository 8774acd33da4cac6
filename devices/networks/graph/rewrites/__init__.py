"""Rewrites of the graph that TVM's passes lack, or do slowly: one module for each subject, one rule for each
operator."""
