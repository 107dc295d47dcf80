"""The command line: :mod:`tinker.cli.app` has the options of all commands, ``commands`` a module
for each group of them.
"""

from __future__ import annotations

from tinker.cli.app import main

__all__ = ["main"]
