"""Find the sentence in which a server explains a refusal, in the forms that servers and frameworks give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

# The first of these that has a text. ``error`` is a short code where a message stands beside it.
_FIELDS = ("detail", "message", "msg", "error")


def find_explanation(body: object) -> str | None:
    """Return the text of a refusal; None if the body has another form.

    >>> find_explanation({"error": {"message": "no such model", "type": "not_found"}})
    'no such model'
    >>> find_explanation({"detail": [{"loc": ["body", "seed"], "msg": "Input should be an integer"}]})
    'body.seed: Input should be an integer'
    """
    if not isinstance(body, dict):
        return None
    fields = cast("Mapping[str, object]", body)
    return next(filter(None, (_read_text(fields.get(name)) for name in _FIELDS)), None)


def _read_text(value: object) -> str | None:
    if isinstance(value, list):
        return _join_faults(cast("Sequence[object]", value))
    if isinstance(value, str):
        return value if value.strip() else None
    return find_explanation(value)


def _join_faults(faults: Sequence[object]) -> str | None:
    """Return the faults that a server found in a body; None if one of them has another form."""
    texts = [_describe_fault(fault) for fault in faults]
    return "; ".join(text for text in texts if text) if all(texts) else None


def _describe_fault(fault: object) -> str | None:
    """Return a fault with its place, such as ``body.seed: Input should be an integer``."""
    text = _read_text(fault)
    place = cast("Mapping[str, object]", fault).get("loc") if isinstance(fault, dict) else None
    return f"{'.'.join(map(str, cast('list[object]', place)))}: {text}" if text and isinstance(place, list) and place else text
