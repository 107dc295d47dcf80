"""The versions of this package, which pyproject.toml reads from here."""

__title__ = "tinker"
#: The version of the official SDK whose surface this package matches, and the one that servers are
#: told.
__version__ = "0.38.0"
#: The version of this implementation.
OPEN_VERSION = "1.0.0"
#: What `pip list` shows. It satisfies `tinker>=0.38`, is visible in lock files, and no package
#: index accepts it.
DISTRIBUTION_VERSION = f"{__version__}+open.{OPEN_VERSION}"
