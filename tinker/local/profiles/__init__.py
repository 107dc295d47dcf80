"""The servers that this one can pass for: what a client of theirs sees, as data and a few functions."""

from __future__ import annotations

from tinker.local.profiles.base import Profile
from tinker.local.profiles.legacy import read_body
from tinker.local.profiles.minimal_json import MINIMAL_JSON
from tinker.local.profiles.registry import OFFICIAL, PROFILES, find_profile
from tinker.local.profiles.skyrl import SKYRL

__all__ = ["MINIMAL_JSON", "OFFICIAL", "PROFILES", "Profile", "SKYRL", "find_profile", "read_body"]
