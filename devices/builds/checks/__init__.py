"""Inputs on which correct and wrong kernels give different results."""
