"""Errors of a local server whose dependencies are not installed, each in a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING = "pip install 'starlette>=0.40' 'uvicorn>=0.30' 'transformers>=4.57' 'safetensors>=0.4'"
REST = "pip install 'transformers>=4.57' 'safetensors>=0.4'"
FILES = ("tokenizers", "transformers", "safetensors")
TORCH = ("torch", "peft", "PIL")


def error_without(*absent: str, folder: Path, url: str = "local://") -> str:
    """Return the error of the README's first lines without these packages."""
    script = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
import tinker
service = tinker.ServiceClient(base_url="{url}")
try:
    service.create_lora_training_client(base_model="tinker/babble", rank=16).result(30)
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    env = {"HOME": str(folder), "TINKER_LOCAL_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plain_installation(tmp_path: Path) -> None:
    """The first error has one command for a checkout, and one that works anywhere."""
    error = error_without("starlette", "uvicorn", *FILES, *TORCH, folder=tmp_path)
    assert error.startswith("ImportError: ")
    assert EVERYTHING in error
    assert "pip install '.[local]' in a checkout of this package, or pip install" in error


def test_only_the_web_server_is_missing(tmp_path: Path) -> None:
    """The install command names only packages that are missing."""
    for name in FILES:
        pytest.importorskip(name)
    assert error_without("starlette", "uvicorn", folder=tmp_path).endswith(
        "pip install 'starlette>=0.40' 'uvicorn>=0.30'\n"
    )


def test_only_the_files_cannot_be_read(tmp_path: Path) -> None:
    """A server that falls back to the toy engine says what the packaged model needs."""
    error = error_without(*FILES, *TORCH, folder=tmp_path)
    assert "'tinker/toy'" in error
    assert REST in error


def test_the_packaged_model_runs_without_torch(tmp_path: Path) -> None:
    """Where torch is not installed, the packaged model is there; another model asks for torch, with
    the command.
    """
    pytest.importorskip("safetensors")
    pytest.importorskip("transformers")
    assert error_without(*TORCH, folder=tmp_path) == ""
    error = error_without(*TORCH, folder=tmp_path, url=f"local://{tmp_path}")
    assert (
        "the torch engine needs torch, peft: pip "
        "install 'torch>=2.4,<=2.13.0' 'peft>=0.17' 'pillow>=10.1'"
    ) in error
