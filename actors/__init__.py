"""The Ray actors of a run, their clients, and the session that starts them.

May import: ``devices``, ``policies``, ``fleet_tune.base.records``, ``.config``, ``.domain``, ``.sketch``, ``.errors``.
This is the only package that imports ray."""
