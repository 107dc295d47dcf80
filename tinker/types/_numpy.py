"""numpy, imported by the first array: what has none, such as most commands, starts in half the
time.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        """The module, imported on a thread that Ctrl-C does not reach.

        A thread that waits for the import of another one, and is interrupted while it takes
        Python's lock of the module, never lets it go, and every later use of the module waits for
        it. A `threading.Thread` has such locks, too: one whose start is interrupted may never run.
        So the thread and its lock are the interpreter's own.
        """

        def __getattr__(self, name: str) -> object:
            imported = _thread.allocate_lock()
            imported.acquire()
            _thread.start_new_thread(_import_numpy, (imported,))
            imported.acquire()
            import numpy  # it is there, or the error is raised here

            value = getattr(numpy, name)
            setattr(self, name, value)  # so that the next look is as quick as into the module
            return value

    def _import_numpy(imported: _thread.LockType) -> None:
        try:
            import numpy  # noqa: F401
        except ImportError:
            pass  # the thread that waits raises it
        finally:
            imported.release()

    np = _Numpy()
