"""The engine that trains a Llama in numpy, without torch: the readable reference of what the server
computes.

``llama`` is the model with its backward pass, ``engine`` trains it, ``sampling`` draws from it.
"""

from __future__ import annotations

from tinker.local.engines.numpy.engine import NumpyEngine

__all__ = ["NumpyEngine"]
