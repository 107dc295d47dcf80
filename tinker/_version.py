"""The version of this package, which is the version of the surface it matches."""

__version__ = "0.38.0"
