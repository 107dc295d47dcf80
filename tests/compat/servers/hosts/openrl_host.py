"""Start OpenRL's gateway with its trainer in one process, on the CPU:
`openrl_host.py MODEL PORT FOLDER`.

OpenRL is no package: its modules are in the folder `source` of the environment. Its Makefile runs
the same application, with the settings that are set here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

MODEL, PORT, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]).resolve()

if __name__ == "__main__":
    import uvicorn

    os.environ |= {
        "BASE_MODEL": MODEL,
        "SAMPLING_BACKEND": "torch",
        "OPEN_RL_TMP_DIR": str(FOLDER / "openrl"),
    }
    uvicorn.run(
        "gateway:app",
        host="127.0.0.1",
        port=PORT,
        app_dir=str(Path(sys.prefix, "source", "src", "server")),
    )
