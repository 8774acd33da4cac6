"""The systems that we compare with, each in its own process: MetaSchedule, and frameworks that do not tune."""
