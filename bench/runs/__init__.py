"""Benchmarks of the runtime itself: devices kept busy, records made durable."""
