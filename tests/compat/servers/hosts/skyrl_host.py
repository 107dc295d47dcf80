"""Start SkyRL's Tinker API server with the JAX backend: `skyrl_host.py serve MODEL PORT FOLDER`.

The server starts its engine by `uv run`, in a project of its own; here the engine is
`skyrl_host.py engine ...`, in the environment of the server. SkyRL wants Python 3.12; on 3.11
pydantic asks for another `TypedDict` than that of `typing`, and nothing else is in the way.
"""

from __future__ import annotations

import os
import sys
import typing
from pathlib import Path
from typing import Any

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict

os.environ["JAX_PLATFORMS"] = "cpu"
# The compiled code of one run is reused by the next.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path.cwd().parent / "jax-cache"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def serve(model: str, port: int, folder: Path) -> None:
    """Serve until the process is ended."""
    import uvicorn
    from cloudpathlib import AnyPath
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, config_to_argv

    def engine_command(parent: list[str], config: Any) -> list[str]:
        del parent
        return [sys.executable, __file__, "engine", *config_to_argv(config)]

    api._build_uv_run_cmd_engine = engine_command
    api.app.state.engine_config = EngineConfig(
        base_model=model,
        backend="jax",
        backend_config={
            "max_lora_adapters": 96,
            "max_lora_rank": 8,
            "train_micro_batch_size": 4,
            "sample_max_num_sequences": 8,
        },
        checkpoints_base=AnyPath(folder / "checkpoints"),
        database_url=f"sqlite:///{folder / 'tinker.db'}",
    )
    uvicorn.run(api.app, host="127.0.0.1", port=port)


def run_engine() -> None:
    """Work for the server that started this process."""
    from skyrl.tinker.engine import main

    sys.argv[1:] = sys.argv[2:]
    main()


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        run_engine()
    else:
        serve(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]).resolve())
