"""Networks that are kept tuned by a long-running service: its hands and its files; policies.retuning decides."""
