"""Profiles: which server this one passes for, as data and a few functions; those of other servers
are in the kit for tests.

A profile changes requests before they are read and answers before they are sent, and lists the
operations that do not exist. Behind it the same server works.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import attrs
import msgspec

from tinker.local.errors import APIProblem, conflict
from tinker.types.results import ForwardBackwardOutput

# has the profiles of other servers; loaded when one is named
OTHER_SERVERS = "tinker.testing.servers"
JSONObject: TypeAlias = dict[str, Any]
#: A body as it came, as it shall be read; raises APIProblem to refuse it.
Rewrite: TypeAlias = Callable[[JSONObject], JSONObject]
#: The body of a request (empty where there is none) and the answer to it, as the answer shall be
#: sent.
Reshape: TypeAlias = Callable[[JSONObject, JSONObject], JSONObject]


@attrs.frozen(kw_only=True)
class IdScheme:
    """How ids are made. ``by_number`` False means that a client's number of a model or sampler
    identifies nothing.
    """

    session: Callable[[], str] = lambda: str(uuid.uuid4())
    model: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:train:{number}"
    sampler: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:sample:{number}"
    by_number: bool = True


def _keep_output(output: ForwardBackwardOutput, *_: object) -> ForwardBackwardOutput:
    return output


def _allow_loss(*_: object) -> None:
    return None


def _refuse_reused_number(key: str) -> APIProblem:
    return conflict(
        f"request {key!r} was submitted before with another body; use a new seq_id", "seq_id_used"
    )


_NO_PROTOBUF = APIProblem(415, "this server reads application/json only")


@attrs.frozen(kw_only=True)
class Profile:
    """One server as its clients see it.

    ``hold_seconds``: how long a poll is held by default. ``absent``: operations that are not there,
    with the status of the answer. ``protobuf``: whether it is read and written.
    ``protobuf_problem``: the answer to protobuf where it is not read. ``announces_size``: whether
    large results are announced by size. ``pending_status``: 200 says "try again" to clients that
    know it; 408 never does. ``pending_body``: the body of such a 408, made from the server's own.
    ``failed_status``: of the poll of a failed request; 200 sends category and text.
    ``numbered_requests``: whether request ids are integers. ``ordered``: whether a model's requests
    run in the order of their numbers, or of their arrival. ``loads_first_only``: whether
    ``load_weights`` must be the first request of its model.

    ``requests`` and ``answers`` change JSON bodies by operation; ``results`` change those of
    ``retrieve_future`` by the result's type. ``check_loss`` refuses a loss (name, options, data);
    ``loss_output`` changes what was computed for one (output, examples, name, options).
    ``reused_number`` refuses a number that was used before; ``rewrite_problem`` changes any
    refusal.
    """

    name: str
    hold_seconds: float = 30.0
    absent: Mapping[str, int] = attrs.field(factory=lambda: dict[str, int]())
    ids: IdScheme = IdScheme()
    numbered_requests: bool = False
    protobuf: bool = True
    protobuf_problem: APIProblem = _NO_PROTOBUF
    announces_size: bool = True
    pending_status: int = 200
    pending_body: Rewrite = lambda body: body
    failed_status: int = 200
    ordered: bool = True
    loads_first_only: bool = False
    requests: Mapping[str, Rewrite] = attrs.field(factory=lambda: dict[str, Rewrite]())
    answers: Mapping[str, Reshape] = attrs.field(factory=lambda: dict[str, Reshape]())
    results: Mapping[type, Rewrite] = attrs.field(factory=lambda: dict[type, Rewrite]())
    check_loss: Callable[[str, Mapping[str, float | str], Sequence[Any]], None] = _allow_loss
    loss_output: Callable[..., ForwardBackwardOutput] = _keep_output
    reused_number: Callable[[str], APIProblem] = _refuse_reused_number
    rewrite_problem: Callable[[APIProblem], APIProblem] = lambda problem: problem

    def __str__(self) -> str:
        return self.name

    @property
    def can_repeat(self) -> bool:
        """Return whether a repeated request is recognized by its client's number."""
        return self.ids.by_number and self.ordered and not self.numbered_requests

    def rewrite_request(self, operation: str, content: bytes) -> bytes:
        """Return a JSON body as the server reads it. Raises APIProblem when the
        profile refuses it.
        """
        rewrite = self.requests.get(operation)
        return content if rewrite is None else _edit(content, rewrite)

    def rewrite_answer(self, operation: str, asked: bytes, answer: bytes) -> bytes:
        """Return a JSON answer as the client gets it."""
        reshape = self.answers.get(operation)
        return (
            answer
            if reshape is None
            else _edit(answer, lambda body: reshape(_read_object(asked) or {}, body))
        )

    def rewrite_result(self, kind: type, content: bytes) -> bytes:
        """Return a result in JSON as the client gets it."""
        rewrite = self.results.get(kind)
        return content if rewrite is None else _edit(content, rewrite)


def _edit(content: bytes, edit: Rewrite) -> bytes:
    """Edit a JSON object; leave anything else for the reader to refuse."""
    body = _read_object(content)
    return content if body is None else msgspec.json.encode(edit(body))


def _read_object(content: bytes) -> JSONObject | None:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


OFFICIAL = Profile(name="official")


def find_profile(wanted: str | Profile) -> Profile:
    """Return the profile of that name. Raises ValueError, naming the known ones,
    for another name.
    """
    if isinstance(wanted, Profile):
        return wanted
    if wanted == OFFICIAL.name:
        return OFFICIAL
    profiles: Mapping[str, Profile] = import_module(OTHER_SERVERS).PROFILES
    if wanted not in profiles:
        raise ValueError(f"there is no profile {wanted!r}; the profiles are {', '.join(profiles)}")
    return profiles[wanted]
