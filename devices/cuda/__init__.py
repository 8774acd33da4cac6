"""CUDA without a GPU at hand: the compiler, and the runtime that loads what it made."""
