"""A path that older code imports from; see :mod:`tinker.errors`."""

from tinker.errors import *  # noqa: F403 - every name of it is offered under this path too
