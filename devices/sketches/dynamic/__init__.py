"""Kernels over a dynamic extent: tiles of rows, each computed by a kernel of a fixed number of rows."""
