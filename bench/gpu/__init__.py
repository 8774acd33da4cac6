"""A machine with an NVIDIA GPU: what runs on it, what is right, and how fast it is beside PyTorch and MetaSchedule."""
