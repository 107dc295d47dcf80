"""What every test may import: the generator of the bindings, which no wheel contains."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last, so that the installed package is the one that is tested
