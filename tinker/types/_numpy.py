"""numpy, imported by the first array: what has none, such as most commands, starts in half the time."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """The module, imported on a thread that Ctrl-C does not reach.

        A thread that waits for the import of another one, and is interrupted while it takes Python's lock of the module,
        never lets it go, and every later use of the module waits for it.
        """

        def __getattr__(self, name: str) -> object:
            thread = threading.Thread(target=importlib.import_module, args=("numpy",), name="tinker-numpy", daemon=True)
            thread.start()
            thread.join()
            import numpy  # it is there, or the error is raised here

            value = getattr(numpy, name)
            setattr(self, name, value)  # so that the next look is as quick as into the module
            return value

    np = _Numpy()
