"""Networks with dynamic dimensions: their bounds, extents other than the typical ones, and kernels over these
dimensions."""
