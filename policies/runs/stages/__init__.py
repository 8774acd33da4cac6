"""The stages of a run's candidates (granting, building, measuring, the final round), their pace, and the occupation of
the devices."""
