"""Find phrases that read as translated, in the pages and in what the package says:
`python docs/_scripts/prose.py`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# written by other scripts
RECORDED = {
    "coverage.md",
    "methods.md",
    "servers.md",
    "ecosystem.md",
    "tuft.md",
    "skyrl.md",
    "hatchery.md",
    "openrl.md",
}
BANNED = {  # a phrase, and what to write
    r"for ever\b": "forever",
    r"time-outs?\b": "timeout",
    r"\b(?:is|are) to be\b": "must be",
    r"whole numbers?\b": "integer",
    r"\bheeded\b": "honored",
    r"\bmade anew\b": "created again",
    r"\blikewise\b": "also; or say it again",
    r"\bthereof\b": "of it",
    r"\bwhose fault\b": "the cause",
    r"\bpatience is over\b": "the timeout expired",
    r"\bgone through\b": "read",
    r"\bas told\b": "as described",
    r"\bgoes? on from here\b": "see also",
    r"\bin the end\b": "finally",
    r"\ball in all\b": "in total",
    r"\bwho (?:writes|would rather|reads|wants)\b": "if you",
    r"\bwhere there is none\b": "if there is none",
    r"\bis the user's to\b": "you can",
    r"\b(?:is|are) there to see\b": "you can see",
    r"\bmisspelt\b": "misspelled",
    r"\blearnt\b": "learned",
    r"\b(?:weights|files|names|words|losses|keys?|headers|class) of "
    r"(?:yours|ours|theirs)\b": "your ...",
    r"\blosses of your own\b": "custom losses",
    r"\bso-called\b": "",
    r"\bhow often at most\b": "the most",
    r"\btried again\b": "retried",
    r"\bso that (?:nothing|nobody)\b": "what it prevents",
    r"\bwhat (?:it|this|that|they) costs?\b": "the cost of ...",
    r"\b(?:goes|go|went|going) on\b": "continue",
    r"\bsomebody else\b": "another user",
    r"\b(?:is|are) told apart\b": "distinguish",
    r"\bfor nothing\b": "without effect",
    r"\bnobody (?:knows|looked)\b": "it is unknown",
    r"\banew\b": "again, from scratch",
    r"\bis not told as\b": "is not",
    r"\bof (?:today|yesterday)\b": "current",
    r"\bdo(?:es)? both\b": "name the two things",
    r"\b(?:has|have) done already\b": "has already done",
    r"\b\d+ (?!and|or)\w+ more\b": "16 more samples",
    r"\b(?:waits|wait|lasts|last)\b[^.]*, for (?:seconds|minutes|hours)\b": "up to how long",
    r"\bbehind HTTPS\b": "over HTTPS",
    r"\bwhere you read this\b": "name the place",
}
PATTERN = re.compile("|".join(f"({phrase})" for phrase in BANNED), re.IGNORECASE)
CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->", re.DOTALL)


def pages() -> list[Path]:
    """The pages that people write."""
    return [
        ROOT / "README.md",
        *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name not in RECORDED),
    ]


def modules() -> list[Path]:
    """The sources whose docstrings and messages users read."""
    files = [
        path for folder in ("tinker", "examples") for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    return [path for path in files if "tinker/local/engines/" not in str(path)]


def strings_of(module: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each docstring and message of a module."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def find_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and what to write, for each banned phrase outside of code."""
    prose = CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    flat = re.sub(r"(?<=\S)\n(?=\S)", " ", prose)  # a phrase may be broken over two lines
    for found in PATTERN.finditer(flat):
        advice = next(
            better
            for phrase, better in BANNED.items()
            if re.fullmatch(phrase, found[0], re.IGNORECASE)
        )
        yield prose.count("\n", 0, found.start()) + 1, found[0], advice


def main() -> int:
    texts = [(page, 1, page.read_text(encoding="utf-8")) for page in pages()]
    texts += [(module, first, text) for module in modules() for first, text in strings_of(module)]
    found = [
        (file, first + line - 1, said)
        for file, first, text in texts
        for line, *said in find_phrases(text)
    ]
    for file, line, (phrase, better) in found:
        print(f"{file.relative_to(ROOT)}:{line}: {phrase!r}: write {better!r}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
