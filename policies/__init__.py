"""Decisions only: bandits, draft model, acquisition, selection, stopping, cost models.

May import: ``fleet_tune.base.domain``, ``.sketch``, ``.errors``. Never ray, tvm, asyncio or prometheus_client. No
policy reads a clock, file, environment or global random state: it takes arrays, plain values, an explicit
``numpy.random.Generator`` and elapsed seconds, and returns decisions as values with a reason.
"""
