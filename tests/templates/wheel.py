"""The chat templates in the wheel of TRL, read as data: nothing of TRL is imported."""

from __future__ import annotations

from functools import cache
from importlib.metadata import files

_FOLDER = "trl/chat_templates/"
_TRAINING = "_training"


@cache
def _read_all() -> dict[str, str]:
    found = [
        path
        for path in files("trl") or ()
        if str(path).startswith(_FOLDER) and path.suffix == ".jinja"
    ]
    return {path.stem: path.read_text("utf-8") for path in sorted(found)}


#: The templates that models have, by name, and those of them that TRL trains with in their place.
TEMPLATES = {name: text for name, text in _read_all().items() if not name.endswith(_TRAINING)}
FOR_TRAINING = {
    name.removesuffix(_TRAINING): text
    for name, text in _read_all().items()
    if name.endswith(_TRAINING)
}
