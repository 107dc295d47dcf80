"""Reads `.proto` files: messages, fields, enums and reserved numbers. Options and services are
skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from codegen.document import Refusal

TOKENS = re.compile(
    r'//[^\n]*|/\*.*?\*/|("(?:[^"\\\n]|\\.)*")|([A-Za-z_.][\w.]*)|(-?\d\w*)|([{}()\[\]<>=;,])',
    re.DOTALL,
)
LABELS = frozenset({"repeated", "optional", "required"})
#: The blocks that say nothing about messages.
PASSED_OVER = frozenset({"option", "import", "extensions", "extend", "service", "edition"})


@dataclass(frozen=True)
class ProtoField:
    """One field of a message, or one value of an enum (which has no type)."""

    name: str
    number: int
    type: str = ""
    label: str = ""
    oneof: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.label, self.type, self.name))) + f" = {self.number}"


@dataclass
class ProtoType:
    """A message or an enum."""

    name: str
    kind: str
    fields: list[ProtoField] = field(default_factory=list[ProtoField])
    #: Numbers and names that may not be used.
    reserved: set[int | str] = field(default_factory=set[int | str])


@dataclass
class ProtoFile:
    """The types of one file by their full names without the package."""

    package: str = ""
    syntax: str = "proto2"
    types: dict[str, ProtoType] = field(default_factory=dict[str, ProtoType])


class ProtoReader:
    """Reads one file from its tokens."""

    def __init__(self, text: str, name: str = "the .proto") -> None:
        self._tokens = ["".join(match.groups(default="")) for match in TOKENS.finditer(text)]
        self._tokens = [token for token in self._tokens if token]
        self._at, self._name, self._file = 0, name, ProtoFile()

    def read(self) -> ProtoFile:
        """Read everything.

        Raises:
            Refusal: The text is not a `.proto` file.
        """
        while self._at < len(self._tokens):
            word = self._next()
            if word in ("syntax", "package"):
                value = [token for token in self._statement() if token != "="]
                setattr(self._file, word, value[0].strip('"'))
            elif word in ("message", "enum"):
                self._read_type(word, "")
            elif word in PASSED_OVER:
                self._pass_over()
            elif word != ";":
                raise Refusal(self._name, f"{word!r} is not understood")
        return self._file

    def _next(self) -> str:
        if self._at >= len(self._tokens):
            raise Refusal(self._name, "it ends in the middle of a statement")
        self._at += 1
        return self._tokens[self._at - 1]

    def _statement(self) -> list[str]:
        return list(iter(self._next, ";"))

    def _pass_over(self) -> None:
        """Skip a statement, with the block that belongs to it."""
        depth = 0
        while (token := self._next()) != ";" or depth:
            depth += (token == "{") - (token == "}")
            if token == "}" and not depth:
                return

    def _read_type(self, kind: str, scope: str) -> None:
        found = ProtoType(f"{scope}{self._next()}", kind)
        self._file.types[found.name] = found
        self._expect("{")
        self._read_members(found, "")

    def _expect(self, token: str) -> None:
        if (word := self._next()) != token:
            raise Refusal(self._name, f"{token!r} is expected, here is {word!r}")

    def _read_members(self, owner: ProtoType, oneof: str) -> None:
        while (word := self._next()) != "}":
            if word in ("message", "enum") and self._tokens[self._at + 1] == "{":
                self._read_type(word, f"{owner.name}.")
            elif word == "oneof" and self._tokens[self._at + 1] == "{":
                name = self._next()
                self._expect("{")
                self._read_members(owner, name)
            elif word == "reserved":
                owner.reserved |= set(reservations_in(self._statement()))
            elif word in PASSED_OVER:
                self._pass_over()
            elif word != ";":
                owner.fields.append(self._read_field(word, owner.kind, oneof))

    def _read_field(self, word: str, kind: str, oneof: str) -> ProtoField:
        words = [word, *self._statement()]
        words = words[: words.index("[")] if "[" in words else words
        if "=" not in words[1:-1]:
            raise Refusal(self._name, f"{' '.join(words)!r} is not a field")
        at = words.index("=")
        label = words[0] if words[0] in LABELS and kind == "message" else ""
        type_name = "".join(words[1 if label else 0 : at - 1])
        return ProtoField(
            words[at - 1], read_number(words[at + 1], self._name), type_name, label, oneof
        )


def read_number(text: str, name: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise Refusal(name, f"{text!r} is not a number") from None


def reservations_in(words: list[str]) -> Iterator[int | str]:
    """Return the numbers and names of a `reserved` statement. A range without an end is its first
    number.
    """
    for item in " ".join(words).split(","):
        first, _, last = item.strip().partition(" to ")
        if re.fullmatch(r"-?\d+", first):
            end = int(last) if re.fullmatch(r"-?\d+", last) else int(first)
            yield from range(int(first), min(end, int(first) + 100_000) + 1)
        elif first:
            yield first.strip('"')
