"""The peers, each in a process of its own: MetaSchedule, and the frameworks that run a network untuned."""
