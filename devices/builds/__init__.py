"""Builds: candidates to artifacts by a long-lived child process, the artifact cache, executables, linking."""
