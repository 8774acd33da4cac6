"""Builds: a long-lived child process that builds candidates to artifacts, the artifact cache, executables, linking."""
