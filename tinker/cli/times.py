"""Times as options and arguments: moments, and how long a checkpoint is kept."""

from __future__ import annotations

import datetime

from tinker.cli.errors import CommandFailed

_DAYS_AGO = {"today": 0, "yesterday": 1}


def parse_time(text: str) -> datetime.datetime:
    """Parse a date or time, of UTC without a zone, or ``today`` or ``yesterday`` (00:00 UTC); CommandFailed for others."""
    if text in _DAYS_AGO:
        now = datetime.datetime.now(datetime.UTC)
        return now.replace(hour=0, minute=0, second=0, microsecond=0) - datetime.timedelta(days=_DAYS_AGO[text])
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise CommandFailed(f'"{text}" is not a date: write it like 2026-01-31, 2026-01-31T08:00Z or yesterday') from None
    return with_zone(time)


def with_zone(time: datetime.datetime) -> datetime.datetime:
    """Return the time, of UTC if it has no zone."""
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


def check_ttl(seconds: int | None) -> None:
    """CommandFailed, naming --ttl, unless the time is None or within the limits of the contract."""
    from tinker_wire.limits import TTL_SECONDS_MAXIMUM, TTL_SECONDS_MINIMUM

    if seconds is not None and not TTL_SECONDS_MINIMUM <= seconds <= TTL_SECONDS_MAXIMUM:
        limits = f"from {TTL_SECONDS_MINIMUM} (an hour) to {TTL_SECONDS_MAXIMUM} (ten years)"
        raise CommandFailed(f"--ttl is a number of seconds {limits}, got {seconds}")
