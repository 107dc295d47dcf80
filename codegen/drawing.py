"""docs/architecture.svg: the imports of the client as a picture, as
tools/structure.py draws them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from codegen.files import Wanted


def make_drawing(root: Path, document: Any) -> Wanted:
    """Return the text of the drawing."""
    with tempfile.TemporaryDirectory() as folder:
        drawing = Path(folder) / "architecture.svg"
        command = [
            sys.executable,
            str(root / "tools" / "structure.py"),
            "--root",
            str(root),
            "--drawing",
            str(drawing),
        ]
        subprocess.run(command, check=True)
        return {root / "docs" / "architecture.svg": drawing.read_text(encoding="utf-8")}
