"""CUDA without a GPU on the build host: the compiler, and the runtime that loads what it made."""
