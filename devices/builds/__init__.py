"""Candidates to artifacts: the builder with its warm child process, the artifact cache, executables and linking."""
