"""Quiet windows: what works on a host stands still while its device measures, and goes on afterwards."""
