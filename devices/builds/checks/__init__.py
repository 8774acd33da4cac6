"""Inputs on which right kernels and wrong ones differ."""
