"""Torch modules and exported programs as Relax modules."""
