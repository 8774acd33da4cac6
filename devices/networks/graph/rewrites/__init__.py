"""Rewrites of the graph that TVM's passes do not do, or do slowly: one module for each subject, one rule for each
operator."""
