"""The version of this package, which is the version of the surface it matches."""

__title__ = "tinker"
__version__ = "0.38.0"
