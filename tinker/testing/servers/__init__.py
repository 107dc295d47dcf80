"""The servers that the local server stands in for. ``Settings(profile=...)`` and
``tinker serve --profile`` take their names.

``skyrl`` is SkyRL's server of August 2026; ``minimal-json`` is the common part of the servers for
clients of late 2025; ``strict`` validates as the classes of SDK 0.25 do; ``plain-json`` reads JSON
only, and fails on anything else.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinker.local.profiles import OFFICIAL, Profile
from tinker.testing.servers.generic import MINIMAL_JSON, PLAIN_JSON, STRICT
from tinker.testing.servers.skyrl import SKYRL

__all__ = ["PROFILES"]

PROFILES: Mapping[str, Profile] = {
    profile.name: profile for profile in (OFFICIAL, SKYRL, MINIMAL_JSON, STRICT, PLAIN_JSON)
}
