"""The servers that this one can stand in for, as data and a few functions.

A profile changes requests before they are read and answers before they are sent, and lists the operations that do not exist.
Behind it the same server works. ``skyrl`` is SkyRL's server of August 2026; ``minimal-json`` is the common part of the servers
for clients of late 2025; ``strict`` validates as the classes of SDK 0.25 do; ``plain-json`` reads JSON only, and fails on
anything else.
"""

from __future__ import annotations

from tinker.local.bodies import read_body
from tinker.local.profiles.base import Profile
from tinker.local.profiles.minimal_json import MINIMAL_JSON
from tinker.local.profiles.registry import OFFICIAL, PROFILES, find_profile
from tinker.local.profiles.skyrl import SKYRL

__all__ = ["MINIMAL_JSON", "OFFICIAL", "PROFILES", "Profile", "SKYRL", "find_profile", "read_body"]
