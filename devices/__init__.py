"""TVM: networks to tasks, design spaces, features, builds, device server, measurement, simulated device.

May import: ``fleet_tune.base.domain``, ``.sketch``, ``.errors``, ``.config``, ``.records``. Never ``policies``,
``actors``, ray. This is the only package that imports TVM; importing the package itself loads nothing, its modules do.
"""
