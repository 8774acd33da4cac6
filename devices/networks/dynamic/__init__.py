"""Networks with dynamic dimensions: the bounds of these, other extents than the typical, and kernels over them."""
