"""Compares the content of messages: media types, their schemas, and the protobuf messages they
name.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.diff.findings import (
    CLIENTS,
    NARROWER,
    PYTHON,
    SENT,
    SERVERS,
    WIDER,
    Change,
    breaking,
    difference,
)
from codegen.diff.nodes import child, children, follow, is_set, pairs, spell, value_of
from codegen.diff.schemas import SchemaComparison
from codegen.document import DocumentNode


def compare_bodies(
    old: DocumentNode, new: DocumentNode, sent: SchemaComparison
) -> Iterator[Change]:
    """Compare the bodies of requests."""
    before, after = child(old, "requestBody"), child(new, "requestBody")
    if before is not None and after is not None:
        yield from compare_body(follow(before), follow(after), sent)
    elif before is not None:
        yield breaking(
            "body-removed", before.pointer, "requests have no body any more", CLIENTS, PYTHON
        )
    elif after is not None:
        required = is_set(follow(after), "required")
        what = f"requests have a body now, which is {'required' if required else 'optional'}"
        yield breaking("body-added", after.pointer, what, *((CLIENTS, PYTHON) if required else ()))


def compare_body(old: DocumentNode, new: DocumentNode, sent: SchemaComparison) -> Iterator[Change]:
    was, now = is_set(old, "required"), is_set(new, "required")
    if was != now:
        what = f"the body is {'required now' if now else 'no longer required'}"
        yield difference(
            "body-required", new.pointer, what, SENT, wider=was, narrower=now, typed=True
        )
    yield from compare_content(old, new, sent)


def compare_content(
    old: DocumentNode, new: DocumentNode, schemas: SchemaComparison
) -> Iterator[Change]:
    """Compare the media types of a body. A sender takes any of them; a reader says
    which it takes.
    """
    before, after = children(old, "content"), children(new, "content")
    for name, was, now in pairs(before, after):
        if was is None and now is not None:
            yield new_media_type(name, now, bool(set(before) & set(after)), schemas.use)
        elif was is not None and now is None:
            yield breaking(
                "media-type-removed",
                was.pointer,
                f"{name} is gone",
                *media_type_breaks(schemas.use),
            )
        elif was is not None and now is not None:
            yield from compare_media_type(was, now, schemas)
    if set(before) == set(after) and list(before) != list(after):
        yield breaking(
            "media-type-order", new["content"].pointer, f"{next(iter(after))} comes first now"
        )


def new_media_type(name: str, node: DocumentNode, others_stay: bool, use: str) -> Change:
    """A client asks for answers it can read, so that another form of them hurts only where no old
    form is left.
    """
    breaks = (SERVERS,) if use == SENT or not others_stay else ()
    return breaking("media-type-added", node.pointer, f"{name} is new", *breaks)


def media_type_breaks(use: str) -> tuple[str, ...]:
    return (CLIENTS, PYTHON) if use == SENT else (CLIENTS,)


def compare_media_type(
    old: DocumentNode, new: DocumentNode, schemas: SchemaComparison
) -> Iterator[Change]:
    before, after = child(old, "schema"), child(new, "schema")
    if before is not None and after is not None:
        yield from schemas.compare(before, after)
    elif before is not None or after is not None:
        what = f"the schema is {'gone' if after is None else 'new'}"
        yield difference(
            "schema",
            new.pointer,
            what,
            schemas.use,
            wider=after is None,
            narrower=before is None,
            typed=True,
        )
    for keyword in ("encoding", "itemSchema", "itemEncoding", "prefixEncoding"):
        if value_of(old, keyword) != value_of(new, keyword):
            yield breaking(
                "unknown-keyword",
                new.pointer,
                f"{keyword} is another; what that means is not known",
                CLIENTS,
                SERVERS,
            )
    yield from compare_messages(old, new, schemas.use)


def compare_messages(old: DocumentNode, new: DocumentNode, use: str) -> Iterator[Change]:
    """Compare the protobuf messages that a body may be: an answer may be one of several."""
    before, after = messages_of(old), messages_of(new)
    if before == after:
        return
    breaks: set[str] = set()
    breaks |= {WIDER[use]} if after - before else set()
    breaks |= {NARROWER[use]} if before - after else set()
    if not before or not after:
        breaks = {CLIENTS, SERVERS}
    what = (
        f"the message was {spell(value_of(old, 'x-protobuf-message'))}, is "
        f"{spell(value_of(new, 'x-protobuf-message'))}"
    )
    yield breaking("protobuf-message", new.pointer, what, *breaks)


def messages_of(node: DocumentNode) -> set[str]:
    """Return the messages that `x-protobuf-message` names: `a.B or a.C`."""
    return set(filter(None, str(value_of(node, "x-protobuf-message") or "").split(" or ")))
