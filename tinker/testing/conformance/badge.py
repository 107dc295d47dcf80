"""The badge of a report: an SVG of our own, and the same as the JSON that shields.io draws."""

from __future__ import annotations

from html import escape

import msgspec

from tinker.testing.conformance.outcome import Outcome, Report

LABEL = "Tinker API"
_COLORS = {"brightgreen": "#3fb950", "yellow": "#c99a1b", "red": "#d1383d"}
_CHARACTER_WIDTH, _PADDING, _HEIGHT = 6.6, 12, 20


def message(report: Report) -> str:
    """Return how many of the checks that say something about the server are supported; what it may lack is not counted."""
    counts = report.counts
    tried = len(report.checks) - counts[Outcome.ABSENT]
    return f"{counts[Outcome.SUPPORTED]} of {tried} checks"


def color(report: Report) -> str:
    """Red where something contradicts the document, yellow where something differs or was not tried."""
    if not report.passed():
        return "red"
    return "brightgreen" if report.passed(strict=True) and not report.counts[Outcome.BLOCKED] else "yellow"


def as_endpoint(report: Report) -> bytes:
    """Return the badge as the JSON of a shields.io endpoint."""
    shown = {"schemaVersion": 1, "label": LABEL, "message": message(report), "color": color(report)}
    return msgspec.json.encode(shown) + b"\n"


def as_svg(report: Report) -> bytes:
    """Return the badge as an image."""
    told = message(report)
    left, right = (round(len(text) * _CHARACTER_WIDTH + _PADDING) for text in (LABEL, told))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img"'
        f' aria-label="{escape(LABEL)}: {escape(told)}">',
        f'<rect width="{left}" height="{_HEIGHT}" fill="#444"/>',
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{_COLORS[color(report)]}"/>',
        _text(left / 2, LABEL),
        _text(left + right / 2, told),
        "</svg>",
    ]
    return "".join(parts).encode() + b"\n"


def _text(middle: float, text: str) -> str:
    font = 'font-family="Verdana,sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    return f'<text x="{middle:g}" y="14" {font}>{escape(text)}</text>'
