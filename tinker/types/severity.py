"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import Severity

__all__ = ["Severity"]
