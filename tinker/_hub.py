"""Whether the Hugging Face Hub has a repository; asked once, as its own client retries for half a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_PROBE_SECONDS = 10.0
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError")  # of httpx, requests and Python


def find_absence(name: str, files: Sequence[str], *, kind: str, revision: str | None = None) -> str | None:
    """Return why a repository cannot be loaded; None where it can, or where only loading it will tell.

    One of the ``files`` is in the cache where the repository is. ``kind`` says what it is.
    ImportError without ``huggingface_hub``.
    """
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    hub: Any = huggingface_hub
    try:
        if not any(isinstance(hub.try_to_load_from_cache(name, file, revision=revision), str) for file in files):
            hub.HfApi().model_info(name, timeout=_PROBE_SECONDS)
    except HFValidationError:
        return f"it is neither a directory nor a name on {_host()}"
    except RepositoryNotFoundError:
        return f"{_host()} has no such {kind}, or it is private"
    except Exception as error:  # noqa: BLE001 - its clients raise what they like; only loading will tell
        if any(one.__name__ in _NO_CONNECTION for one in type(error).__mro__):
            return describe_offline()
    return None


def describe_offline() -> str:
    """Say that the hub cannot be reached."""
    return f"no connection to {_host()}, and it is not in the cache"


def _host() -> str:
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT.partition("://")[2]
