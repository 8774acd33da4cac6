"""The version of the package, for what stands below ``fleet_tune.api``."""

__version__ = "0.1.0"
