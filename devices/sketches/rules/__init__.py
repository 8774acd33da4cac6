"""Sketch rules of this project, beside those of MetaSchedule."""
