"""The Hugging Face Hub, as a place for adapters. ``huggingface_hub`` is imported on use. Blocks."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import msgspec

from tinker._installation import install_command
from tinker.errors import TinkerError
from tinker.types.paths import SCHEME, ParsedCheckpointTinkerPath

CARD = "README.md"
CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MAX_REPO_NAME = 96
_TINKER_PATH = re.compile(re.escape(SCHEME) + r"[^\s`'\"<>)\]]+")


@attrs.frozen(kw_only=True)
class Upload:
    """What to put where; see ``tinker.checkpoints.push_to_hub``."""

    tinker_path: str
    folder: Path
    repo_id: str | None
    public: bool
    revision: str | None
    commit_message: str | None
    create_pr: bool
    allow_patterns: Sequence[str] | None
    ignore_patterns: Sequence[str] | None
    model_card: bool


_SINCE_ENDPOINTS = (1, 4)


@attrs.frozen
class Hub:
    """The hub under the name of one user."""

    api: Any  # HfApi, whose methods are not all typed
    user: str


def connect(token: str | None, endpoint: str | None) -> Hub:
    """Connect as the user who is logged in. ImportError without huggingface_hub, TinkerError
    without a login.

    Older versions of huggingface_hub push to an address of the user's, and fail on what that
    answers.
    """
    try:
        from huggingface_hub import HfApi, __version__
    except ImportError:
        raise ImportError(
            f"pushing to a hub needs huggingface_hub: {install_command('hub')}"
        ) from None
    if endpoint is not None and tuple(map(int, __version__.split(".")[:2])) < _SINCE_ENDPOINTS:
        raise ImportError(
            f"endpoint needs huggingface_hub 1.4 or newer, not {__version__}; "
            "or set HF_ENDPOINT instead"
        )
    api: Any = HfApi(endpoint=endpoint, token=token)
    with _refusals("not logged in to the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN"):
        return Hub(api, api.whoami()["name"])


def push(hub: Hub, upload: Upload) -> tuple[str, str]:
    """Push one commit; return the repository and the address of the commit or pull request.
    TinkerError where that fails.
    """
    base_model = _base_model(upload.folder)
    repo = upload.repo_id or f"{hub.user}/{repo_name(upload.tinker_path, base_model)}"
    with _refusals(f"the hub refused the upload to {repo}"):
        hub.api.create_repo(repo, private=not upload.public, exist_ok=True)
        if upload.revision is not None:
            hub.api.create_branch(repo, branch=upload.revision, exist_ok=True)
        present = _present_card(hub, repo, upload.revision)
        _check_same(present, upload.tinker_path, repo)
        if upload.model_card and present is None and not (upload.folder / CARD).exists():
            (upload.folder / CARD).write_text(
                model_card(upload.tinker_path, base_model, repo), encoding="utf-8"
            )
        commit = hub.api.upload_folder(
            repo_id=repo,
            folder_path=upload.folder,
            revision=upload.revision,
            commit_message=upload.commit_message or f"Adapter of {upload.tinker_path}",
            create_pr=upload.create_pr,
            allow_patterns=_to_list(upload.allow_patterns),
            ignore_patterns=_to_list(upload.ignore_patterns),
        )
    return repo, commit.pr_url or commit.commit_url


def _to_list(patterns: Sequence[str] | None) -> list[str] | None:
    return list(patterns) if patterns else None


@contextmanager
def _refusals(what: str) -> Generator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError) as error:
        raise TinkerError(
            what if isinstance(error, LocalTokenNotFoundError) else f"{what}: {error}"
        ) from error


def _base_model(folder: Path) -> str:
    """Read the base model from the adapter's configuration, which must be there,
    and weights too.
    """
    files = {file.name for file in folder.iterdir()}
    if CONFIG not in files or files.isdisjoint(WEIGHTS):
        encrypted = "; they are encrypted" if any(name.endswith(".age") for name in files) else ""
        raise TinkerError(
            f"the files are not a PEFT adapter, which has {CONFIG} and {WEIGHTS[0]}{encrypted}"
        )
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=_AdapterConfig)
    except msgspec.DecodeError as error:
        raise TinkerError(f"could not read {CONFIG} of the checkpoint: {error}") from error
    return config.base_model_name_or_path or "model"


class _AdapterConfig(msgspec.Struct):
    base_model_name_or_path: str | None = None


def repo_name(tinker_path: str, base_model: str) -> str:
    """Return a name for the repository of a checkpoint, of the letters that the hub allows.

    >>> repo_name("tinker://run-1:train:0/weights/final", "Qwen/Qwen3-8B")
    'tinker-Qwen3-8B-run-1-train-0'
    """
    run = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path).training_run_id
    words = f"tinker-{base_model.rpartition('/')[2]}-{run}"
    name = re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]", "-", words)))
    return name[:MAX_REPO_NAME].strip("-.")


def _present_card(hub: Hub, repo: str, revision: str | None) -> str | None:
    """Return the card that the repository has, None without one."""
    if not hub.api.file_exists(repo, CARD, revision=revision):
        return None
    return Path(hub.api.hf_hub_download(repo, CARD, revision=revision)).read_text(
        encoding="utf-8", errors="replace"
    )


def _check_same(card: str | None, tinker_path: str, repo: str) -> None:
    named = set(_TINKER_PATH.findall(card or ""))
    if named and tinker_path not in named:
        raise TinkerError(
            f"{repo} already contains another checkpoint, {min(named)}; pass another repo_id"
        )


def model_card(tinker_path: str, base_model: str, repo: str) -> str:
    """Return the text of a README.md that says what this is and how to load it."""
    return f"""---
base_model: {base_model}
library_name: peft
tags:
- lora
- tinker
---

# {repo.rpartition("/")[2]}

A LoRA adapter for `{base_model}`, trained through the Tinker API.
It is the checkpoint `{tinker_path}`.

```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("{repo}")
```
"""
