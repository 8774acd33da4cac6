"""Service that keeps networks tuned: its steps, its processes and its files. policies.retuning decides."""
