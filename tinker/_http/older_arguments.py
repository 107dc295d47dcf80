"""Constructor arguments of older versions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from tinker._basics.checks import check_count, check_number, warn
from tinker._basics.config import check_headers
from tinker._http.transport import OlderArguments, wrap_client
from tinker_records import find_closest

#: What other clients call an argument.
_OTHER_NAMES = {
    **dict.fromkeys(
        (
            "address",
            "api_base",
            "base",
            "endpoint",
            "host",
            "openai_api_base",
            "server",
            "server_url",
            "url",
        ),
        "base_url",
    ),
    **dict.fromkeys(("api_token", "auth_token", "key", "openai_api_key", "token"), "api_key"),
}
#: Which server, and as whom.
_DESTINATION = frozenset({"base_url", "api_key"})


def read_older_arguments(given: dict[str, object], *, known: Iterable[str]) -> OlderArguments:
    """Read the arguments that older versions knew. Others are named in a FutureWarning, and have no
    effect.

    The warning says which of the ``known`` arguments was probably meant. Where that is the address
    or the key, TypeError is raised instead: the client would talk to another server than was meant.

    Raises TypeError or ValueError for an invalid one; the message names the argument.
    """
    rest = dict(given)
    arguments = OlderArguments(
        silence_seconds=_seconds(rest.pop("timeout", None)),
        max_retries=_count(rest.pop("max_retries", None)),
        headers=_headers(rest.pop("default_headers", None)),
        transport=wrap_client(rest.pop("http_client", None)),
    )
    if rest:
        meant = {name: _OTHER_NAMES.get(name) or find_closest(name, known) for name in sorted(rest)}
        for name, closest in meant.items():
            if closest in _DESTINATION:
                raise TypeError(
                    f"ServiceClient has no argument {name!r}; did you mean {closest!r}?"
                )
        named = (
            f"{name} (did you mean {closest}=...?)" if closest else name
            for name, closest in meant.items()
        )
        warn(f"ServiceClient ignores unknown arguments: {', '.join(named)}", FutureWarning)
    return arguments


def _seconds(timeout: object) -> float | None:
    """Return how long a server may say nothing; of an ``httpx.Timeout`` that is the time for
    reading.
    """
    seconds = getattr(timeout, "read", timeout)
    if seconds is None:
        return None
    check_number("timeout", seconds, positive=True, finite=False)
    return float(cast("float", seconds))


def _count(max_retries: object) -> int | None:
    if max_retries is None:
        return None
    check_count("max_retries", max_retries, least=0)
    return int(cast("int", max_retries))


def _headers(headers: object) -> Mapping[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise TypeError(
            f"default_headers must be a mapping of strings to strings, got {type(headers).__name__}"
        )
    check_headers(cast("Mapping[str, str]", headers))
    return dict(cast("Mapping[str, str]", headers))
