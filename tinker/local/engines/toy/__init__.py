"""The engine without torch: a bigram model in numpy with LoRA matrices, exact gradients and real
sampling.

Imported by its own path, and only where it is used.
"""

from __future__ import annotations

from tinker.local.engines.toy.engine import END_OF_TEXT, ToyEngine

__all__ = ["END_OF_TEXT", "ToyEngine"]
