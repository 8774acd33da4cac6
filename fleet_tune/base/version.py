"""The version of the package, for modules in the layers below ``fleet_tune.api``."""

__version__ = "0.1.0"
