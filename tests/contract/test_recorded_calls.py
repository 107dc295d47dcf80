"""The client sends the recorded requests for the same calls: every recording is replayed.

JSON is compared exactly, but for the order of fields; protobuf as messages. What differs is listed
here, each with its reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from support.judge import strict_contract
from support.recorded_calls import BASE, CALLS, Player
from support.recordings import Exchange, Message, exchanges
from support.replay import API, MODEL, Body, Normal, Replay, Reply, number, unchanged
from tinker_wire.operations import OPERATIONS

import tinker
from tinker.local.call import read_body
from tinker.testing import SteppedClock

#: Requests that this client does not make.
NEVER = {"telemetry": "this client reports about itself only where it is told to, and then less"}

Change = Callable[[Exchange], Exchange]


@attrs.frozen
class Difference:
    """Recorded requests that this client makes otherwise (``change``), or not at all."""

    file: str
    numbers: tuple[int, ...]
    reason: str
    change: Change | None = None


def body(change: Callable[[Body], object]) -> Change:
    """Another JSON body."""

    def changed(exchange: Exchange) -> Exchange:
        value = json.loads(exchange.request.content)
        change(value)
        return attrs.evolve(
            exchange, request=Message(exchange.request.headers, json.dumps(value).encode(), value)
        )

    return changed


def owned(exchange: Exchange) -> Exchange:
    """Asked for what belongs to oneself."""
    return attrs.evolve(
        exchange, query="&".join(filter(None, [exchange.query, "access_scope=owned"]))
    )


def json_accepted(exchange: Exchange) -> Exchange:
    """Return an answer in JSON would do."""
    headers = {**exchange.request.headers, "accept": "application/json"}
    return attrs.evolve(exchange, request=attrs.evolve(exchange.request, headers=headers))


def zero_weights(value: Body) -> None:
    """Every datum with weights that are 0."""
    for datum in value["forward_input"]["data"]:
        shape = datum["loss_fn_inputs"]["target_tokens"]["shape"]
        datum["loss_fn_inputs"]["weights"] = {
            "data": [0.0] * shape[0],
            "dtype": "float32",
            "shape": shape,
        }


def expected_tokens(value: Body) -> None:
    """An image whose tokens are called so, and whose size is not told."""
    image = value["prompt"]["chunks"][1]
    image["expected_tokens"] = image.pop("tokens")
    del image["height"], image["width"]


STOP = (
    "a stop of one text goes out as a list of one, which means the same, and "
    "which every server reads"
)
ENDS = "400 with a text says that the request failed, and says it the first time"
NO_HOLE = (
    "a submission that finally failed breaks the order: nothing later is sent, where the recorded "
    "client left a hole"
)
CONFLICT = "409 says that the number, or the name, is taken; asking again for minutes cannot help"
FORBIDDEN = (
    "`x-should-retry: false` is obeyed, where the recorded client asks again in its outer layer"
)
ON_USE = "a token is renewed for a request that needs it, not while nothing is asked"
CURSOR = "the cursor is told with the next poll that says something"
SCOPE = "later clients say whose runs and sessions they want"
ZEROS = "later clients send weights in the forward pass of a loss of one's own"
IMAGES = "later clients say how many tokens an image takes, and nothing about its size"
NUMBERS = "a sample that was refused with 429 keeps its number, as in later clients"
ARCHIVE = (
    "the address of an archive may come as JSON too, as servers of 2026 give it to later clients"
)

DIFFERENCES = [
    Difference(
        "sample", (10,), STOP, body(lambda value: value["sampling_params"].update(stop=["END"]))
    ),
    Difference("retrieve_errors", (4, 5, 6), ENDS),
    Difference("submit_400_user_error", (4, 6, 8, 10, 11, 12), NO_HOLE),
    Difference("submit_429_retry_after", (5,), CONFLICT),
    Difference("submit_503_should_not_retry", (2, 3), FORBIDDEN),
    Difference("jwt_refresh", (6, 7), ON_USE),
    Difference("sample_retrieve_futures", (6,), CURSOR),
    Difference("sample_retrieve_futures_failed", (4,), CURSOR),
    Difference("legacy_041", (37, 42, 43), SCOPE, owned),
    Difference("legacy_070", (44, 45, 52, 53), SCOPE, owned),
    Difference("legacy_041", (11,), ZEROS, body(zero_weights)),
    Difference("legacy_070", (11,), ZEROS, body(zero_weights)),
    Difference("legacy_041", (35,), IMAGES, body(expected_tokens)),
    Difference("legacy_041", (46,), ARCHIVE, json_accepted),
    Difference("legacy_070", (48,), ARCHIVE, json_accepted),
    Difference("legacy_041", (54,), NUMBERS, body(lambda value: value.update(seq_id=3))),
    Difference("legacy_070", (60,), NUMBERS, body(lambda value: value.update(seq_id=3))),
]
#: How many polls at most are made again, as something seems to be missing from the result.
AGAIN = {
    "forward_backward_chunked_serial": (2, "two results lack a metric that the first has"),
    "forward_backward_chunked_parallel": (
        2,
        "results lack a metric that another has, which may come before or after them",
    ),
    "json_instead_of_proto": (
        2,
        "the recorded result has no outputs for its datum, and is refused each time",
    ),
}
#: Requests that come earlier or later than recorded.
OUT_OF_ORDER = {
    "session_start_jwt": (
        (4, 7),
        "a client asks for the settings with its first request, not when it is made",
    ),
    "legacy_041": (
        (2, 27),
        "a session begins when something needs it; what a model is, is asked once it is there",
    ),
    "legacy_070": (
        (2, 29),
        "a session begins when something needs it; what a model is, is asked once it is there",
    ),
}


def first_beat(recorded: list[Exchange]) -> list[Exchange]:
    """Return a further heartbeat right after the session began, which servers may ask for."""
    beats = [one for one in recorded if one.path == f"{API}session_heartbeat"]
    begins = next((one for one in recorded if one.path == f"{API}create_session"), None)
    return [attrs.evolve(beats[0], place=begins.place)] if beats and begins is not None else []


def played(file: str) -> list[Exchange]:
    """Return the exchanges of a file as they are expected of this client."""
    found = {
        number(one): one
        for one in exchanges()
        if one.file == file and one.path.removeprefix(API) not in NEVER
    }
    for difference in DIFFERENCES:
        for place in difference.numbers if difference.file == file else ():
            if difference.change is None:
                del found[place]
            else:
                found[place] = difference.change(found[place])
    return [*first_beat(list(found.values())), *found.values()]


# ---------------------------------------------------------------------------------- compared values


def drawn(operation: str, value: Body) -> Body:
    """Return a clone's numbers count from one that was drawn."""
    number_of_clone = value.get("seq_id", 0) // 10**9
    return (
        {**value, "seq_id": value["seq_id"] % 10**9, "clone": number_of_clone > 0}
        if operation == "asample"
        else value
    )


def reported(operation: str, value: Body) -> Body:
    """Ignore whether fetched results are reported in one poll or in several."""
    return (
        {**value, "retrieved_request_ids": bool(value["retrieved_request_ids"])}
        if "retrieved_request_ids" in value
        else value
    )


def of_today(operation: str, value: Body) -> Body:
    """Return an older client's body as today's say it: with every default, without nulls."""
    kind = OPERATIONS[strict_contract().find("POST", API + operation).id].body
    assert kind is not None
    record: Body = msgspec.json.decode(
        msgspec.json.encode(read_body(json.dumps(value).encode(), kind))
    )
    # asks whether the result is large; older clients do not know of it
    record.pop("allow_metadata_only", None)
    return single_precision(record)


def single_precision(value: Any) -> Any:
    """Return the value with the numbers of float32 tensors as what float32 makes of them."""
    if isinstance(value, list):
        return list(map(single_precision, value))
    if not isinstance(value, dict):
        return value
    if value.get("dtype") == "float32":
        return {**value, "data": [float(np.float32(one)) for one in value["data"]]}
    return {name: single_precision(item) for name, item in value.items()}


@attrs.frozen
class Circumstances:
    """How the server of a recording is set up, and what of bodies is compared."""

    settings: Body = attrs.field(factory=dict)
    beyond: Mapping[str, Reply] = attrs.field(factory=dict)
    normal: Normal = unchanged
    sdk_version: str = "0.38.0"
    token_seconds: int = 3600


#: A server of 2025 does not know about settings, and creates no model by loading.
OF_2025: Mapping[str, Reply] = {
    "client/config": (404, {"detail": "Not Found"}),
    "load_weights": (422, {"detail": "model_id is missing"}),
    "get_info": (200, {"model_id": MODEL, "model_data": {"model_name": BASE}}),
}
#: Settings where the recording leaves out that they were asked, and what else is peculiar to it.
CIRCUMSTANCES = {
    "custom_loss_client_side": Circumstances({"fwdbwd_max_chunk_len": 2}),
    "custom_loss_server_side": Circumstances({"custom_loss_server_side": True}),
    "forward_backward_chunked_bytes": Circumstances(
        {"fwdbwd_max_chunk_bytes_count": 60, "proto_compress_fwdbwd": True}
    ),
    "forward_backward_chunked_parallel": Circumstances({"fwdbwd_max_chunk_len": 2}),
    "forward_backward_chunked_serial": Circumstances(
        {"fwdbwd_max_chunk_len": 2, "parallel_fwdbwd_chunks": False}
    ),
    "jwt_refresh": Circumstances(token_seconds=6),
    "legacy_041": Circumstances(
        beyond=OF_2025 | {"weights_info": (404, {"detail": "Not Found"})},
        normal=of_today,
        sdk_version="0.4.1",
    ),
    "legacy_070": Circumstances(beyond=OF_2025, normal=of_today, sdk_version="0.7.0"),
    "sample_clone_join": Circumstances({"sample_join_sampling_session": True}),
    "sample_clone_random": Circumstances(normal=drawn),
    "sample_retrieve_futures": Circumstances(
        {"sample_use_retrieve_futures": True},
        {"retrieve_futures": (200, {"completions": [], "cursor": 3})},
        reported,
    ),
    "sample_retrieve_futures_failed": Circumstances({"sample_use_retrieve_futures": True}),
}


def play(file: str, recorded: list[Exchange], folder: Path) -> Replay:
    """Return the recording after all calls of its file."""
    where = CIRCUMSTANCES.get(file, Circumstances())
    settings: Mapping[str, Reply] = (
        {"client/config": (200, where.settings)} if where.settings else {}
    )
    replay = Replay(recorded, where.normal, {**where.beyond, **settings}, where.token_seconds)
    player = Player(replay, SteppedClock(), folder)
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "TINKER_API_KEY",
            "TINKER_BASE_URL",
            "TINKER_PROJECT_ID",
            "TINKER_TAGS",
            "TINKER_CREDENTIAL_CMD",
        ):
            patch.delenv(name, raising=False)
        patch.setenv("TINKER_SDK_VERSION", where.sdk_version)
        CALLS[file](player)
        for service in player.services:
            service.close().result(10)
    return replay


@pytest.mark.parametrize("file", sorted(CALLS))
def test_the_same_calls_send_the_same_requests(file: str, tmp_path: Path) -> None:
    """Each request equals a recorded one, none is missing, and they come in order."""
    replay = play(file, played(file), tmp_path)
    assert replay.faults == []
    assert replay.unsent == []
    assert len(replay.again) <= AGAIN.get(file, (0, ""))[0]
    elsewhere, _ = OUT_OF_ORDER.get(file, ((), ""))
    ordered = [place for place in replay.submitted if place not in elsewhere]
    assert ordered == sorted(ordered)


def test_every_recording_is_played() -> None:
    """No file is left out but for those of which this client asks nothing."""
    assert CALLS.keys() == {one.file for one in exchanges() if played(one.file)}


@pytest.mark.parametrize("difference", DIFFERENCES, ids=lambda one: f"{one.file}:{one.numbers[0]}")
def test_every_difference_is_one(difference: Difference) -> None:
    """Nothing is excused that is not there."""
    recorded = {number(one): one for one in exchanges() if one.file == difference.file}
    for place in difference.numbers:
        assert difference.change is None or difference.change(recorded[place]) != recorded[place]
        assert recorded[place].path.removeprefix(API) not in NEVER


# ------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("file", "place", "change"),
    [
        ("optim_step", 2, body(lambda value: value["adam_params"].update(beta2=0.999))),
        ("optim_step", 4, body(lambda value: value["adam_params"].pop("eps"))),
        (
            "create_model",
            1,
            body(lambda value: value.update(user_metadat=value.pop("user_metadata"))),
        ),
        ("save_load_weights", 6, body(lambda value: value.update(ttl_seconds=7200.0))),
        ("save_load_weights", 10, body(lambda value: value.update(path=None))),
        ("rest_client", 8, owned),
        (
            "rest_client",
            15,
            lambda one: attrs.evolve(
                one, path=one.path.replace("sampler_weights/", "sampler_weights%2F")
            ),
        ),
    ],
)
def test_a_difference_in_a_request_is_found(
    file: str, place: int, change: Change, tmp_path: Path
) -> None:
    """A recording that says something else than the client does is not played to its end."""
    recorded = [change(one) if number(one) == place else one for one in played(file)]
    with pytest.raises(tinker.APIStatusError, match="418"):
        play(file, recorded, tmp_path)
