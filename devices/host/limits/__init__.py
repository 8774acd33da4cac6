"""What a process may take of its host: memory, files, accounts, CPUs, and real-time priority on them."""
