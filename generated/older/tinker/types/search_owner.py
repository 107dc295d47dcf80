"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types import AccessibleSearchOwner, OwnSearchOwner, SearchOwner, UserSearchOwner

__all__ = ["AccessibleSearchOwner", "OwnSearchOwner", "SearchOwner", "UserSearchOwner"]
