"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AccessibleSearchOwner, OwnSearchOwner, SearchOwner, UserSearchOwner

__all__ = ["AccessibleSearchOwner", "OwnSearchOwner", "SearchOwner", "UserSearchOwner"]
