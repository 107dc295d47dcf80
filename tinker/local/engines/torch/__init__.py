"""The engine that trains a transformers model with torch; imported only when it is used."""

from __future__ import annotations

import logging
import os

# Waiting OpenMP threads sleep instead of spinning. On a machine whose cores are busy, spinning
# takes them from the threads that are waited for: the quickstart then took 242 s instead of 47 s.
# Read when torch is first imported; a value that is already set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# PEFT imports bitsandbytes where it is installed. On a processor with bfloat16 that warns of a
# package for faster passes.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

from tinker.local.engines.torch.engine import TorchEngine  # noqa: E402 - after what it reads

__all__ = ["TorchEngine"]
