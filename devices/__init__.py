"""TVM: networks to tasks, design spaces, builds, the device server, measurement, simulated devices.

May import: ``fleet_tune.base``. Never ``policies``, ``actors``, ray. This is the only package that imports TVM;
importing the package itself loads nothing, its modules do.
"""
