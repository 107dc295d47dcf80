"""Read and write the file of stored keys, ``~/.tinker/credentials.json``.

Other clients of the hosted service share the file, so unknown entries are kept as they are. The
file is replaced as a whole and is readable only by its owner. No message quotes it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from tinker.errors import TinkerError

VERSION = 1

#: The whole file, also with what is not understood here.
_Content: TypeAlias = dict[str, Any]


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. ``type`` "generated" is a key made for this machine, which a logout revokes;
    ``details`` say whose it is.
    """

    key: str
    type: str = "manual"
    name: str = ""
    note: str | None = None
    details: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"StoredKey({self.name!r})"

    @property
    def organization(self) -> str | None:
        """Return the name of its organization, where the details say it."""
        found: object = (self.details or {}).get("org_details")
        value = (
            cast("Mapping[str, object]", found).get("name") if isinstance(found, Mapping) else None
        )
        return value if isinstance(value, str) else None


class _Stored(msgspec.Struct):
    keys: dict[str, StoredKey] = {}
    default: str | None = None


def default_key(file: Path) -> tuple[str, StoredKey] | None:
    """Return the id of the current key and the key; None if there is no key. Raises TinkerError for
    an invalid file.
    """
    stored = _parse(_content(file), file)
    found = stored.keys.get(stored.default or "")
    return None if found is None or stored.default is None else (stored.default, found)


def store_default(file: Path, key_id: str, key: StoredKey) -> None:
    """Add a key and use it from now on. TinkerError when the file is broken or
    cannot be written.
    """
    content = _content(file)
    _parse(content, file)
    entry = {name: value for name, value in msgspec.to_builtins(key).items() if value is not None}
    keys = {**content.get("keys", {}), key_id: entry}
    _write(file, {"version": VERSION, **content, "default": key_id, "keys": keys})


def remove_default(file: Path) -> None:
    """Forget the key that is used; does nothing without one. TinkerError when the file is broken or
    cannot be written.
    """
    found = default_key(file)
    if found is None:
        return
    content = _content(file)
    kept = {key_id: entry for key_id, entry in content["keys"].items() if key_id != found[0]}
    _write(
        file,
        {**{name: value for name, value in content.items() if name != "default"}, "keys": kept},
    )


def _content(file: Path) -> _Content:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Content)
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable_error(file, error) from None


def _parse(content: _Content, file: Path) -> _Stored:
    try:
        return msgspec.convert(content, _Stored)
    except msgspec.ValidationError as error:
        raise _unreadable_error(file, error) from None


def _unreadable_error(file: Path, error: Exception) -> TinkerError:
    return TinkerError(f"could not read stored credentials from {file}: {type(error).__name__}")


def _write(file: Path, content: _Content) -> None:
    """Write under another name first, so that a reader finds the old file or the new one."""
    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    draft = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(text)
        os.replace(draft, file)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise TinkerError(
            f"could not write {file}: {error.strerror or type(error).__name__}"
        ) from error
