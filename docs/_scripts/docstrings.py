"""Docstrings as the site shows them: names in roles become code, examples become blocks, generated defaults what they are."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:meth|func|class|attr|mod|exc):`~?([^`]+)`")
_DOUBLED = re.compile(r"``([^`]+)``")
_DEFAULT = re.compile(r"_field\(default_factory=lambda: (.*)\)", re.DOTALL)
_EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Changes the text of each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """A generated default that is a factory only because it must be sent is shown as what it makes."""
        if (made := _DEFAULT.fullmatch(str(attr.value))) is not None:
            attr.value = made[1]


def shown(text: str) -> str:
    """The docstring in Markdown."""
    text = _DOUBLED.sub(r"`\1`", _ROLE.sub(r"`\1`", text))
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)
