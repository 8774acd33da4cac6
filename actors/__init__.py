"""Ray actors: who runs, and who owns which state.

May import: ``devices``, ``policies``, ``fleet_tune.base.records``, ``.config``, ``.domain``, ``.sketch``, ``.errors``.
This is the only package that imports ray."""
