"""Products of bytes and of 16 bits, with the instructions that devices have for them, and bytes between kernels.

:mod:`devices.networks.graph.precisions` converts networks of float32; this package computes in the types that it finds.
"""
