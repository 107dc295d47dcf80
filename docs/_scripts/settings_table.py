"""The table of docs/configuration.md, made of Config: `python docs/_scripts/settings_table.py`
writes it again.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import attrs

from tinker import Config

PAGE = Path(__file__).resolve().parents[1] / "configuration.md"


def default_of(field: attrs.Attribute[Any]) -> str:
    """The default in words."""
    if field.metadata["default"] is not None:
        return str(field.metadata["default"])
    match field.default:
        case None | ():
            return "none"
        case bool():
            return "on" if field.default else "off"
        case float():
            return f"{field.default:g}"
        case _:
            return f"`{field.default}`"


def table() -> str:
    lines = [
        "| setting | variable | argument of ServiceClient | default | meaning |",
        "|---|---|---|---|---|",
    ]
    records = runpy.run_path(str(Path(__file__).with_name("records.py")))
    meanings = {one.name: one.meaning for one in records["fields_of"](Config)}
    for field in attrs.fields(Config):
        variable, argument = (
            f"`{one}`" if one else ""
            for one in (field.metadata["variable"], field.metadata["argument"])
        )
        lines.append(
            f"| `{field.name}` | {variable} | {argument} | {default_of(field)} | "
            f"{meanings[field.name]} |"
        )
    return "\n".join(lines)


def with_table(page: str) -> str:
    """The page with the table as the code has it now."""
    marks = re.compile(
        r"(<!-- table of settings: .*? -->\n).*?(<!-- end of the table -->)", re.DOTALL
    )
    assert marks.search(page), "docs/configuration.md has lost its marks"
    return marks.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
