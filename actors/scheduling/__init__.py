"""The actor that schedules a run, and who watches over it and over the others."""
