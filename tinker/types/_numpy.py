"""numpy, imported by the first array: what has none, such as most commands, starts in half the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> object:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)  # so that the next look is as quick as into the module
            return value

    np = _Numpy()
