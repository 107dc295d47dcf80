"""All profiles by name."""

from __future__ import annotations

from collections.abc import Mapping

from tinker.local.errors import APIProblem
from tinker.local.profiles.base import Profile
from tinker.local.profiles.minimal_json import MINIMAL_JSON
from tinker.local.profiles.skyrl import SKYRL
from tinker.local.profiles.strict import STRICT

PLAIN_JSON = Profile(
    name="plain-json", protobuf=False, announces_size=False, protobuf_problem=APIProblem(500, "Internal Server Error")
)
OFFICIAL = Profile(name="official")
PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (OFFICIAL, SKYRL, MINIMAL_JSON, STRICT, PLAIN_JSON)}


def find_profile(wanted: str | Profile) -> Profile:
    """Return the profile of that name. Raises ValueError, naming the known ones, for another name."""
    if isinstance(wanted, Profile):
        return wanted
    if wanted not in PROFILES:
        raise ValueError(f"there is no profile {wanted!r}; the profiles are {', '.join(PROFILES)}")
    return PROFILES[wanted]
