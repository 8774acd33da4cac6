"""Quiet windows: the other processes of a host are stopped while its device measures, and continued afterwards."""
