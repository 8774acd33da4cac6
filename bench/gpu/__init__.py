"""Checks on a machine with an NVIDIA GPU: which kernels run, which are correct, and how fast they are compared with
PyTorch and MetaSchedule."""
