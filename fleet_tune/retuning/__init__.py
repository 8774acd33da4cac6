"""Service that keeps networks tuned: its steps, processes and files. Its decisions are in policies.retuning."""
