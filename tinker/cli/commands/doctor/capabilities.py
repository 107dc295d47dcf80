"""The capabilities of a server: the format of training requests, and the operations of the
contract.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Operation, Request

from tinker._http import ABSENT_STATUSES, FormAttempt, Negotiation, WireFormat, statuses
from tinker._wire import json, proto
from tinker.cli.commands.doctor.prober import CheckResult, Prober, Support
from tinker.errors import APIStatusError, TinkerError
from tinker.types import Datum, ModelInput

_UNKNOWN_MODEL = "doctor:train:0"
_NAMES = {"proto": "protobuf", "json": "JSON"}


async def check_wire(prober: Prober) -> CheckResult:
    """Negotiate the format as clients do, by a request for a model that does not exist."""
    choice = prober.runtime.config.wire
    wire = Negotiation(choice, prober.runtime.transport.findings)
    wire.note_config_answered((await prober.runtime.server.config()).answered)
    first = wire.form
    refusals: list[APIStatusError] = []

    accepted, forms = first, FormAttempt(wire, has_sparse=False)
    while (refusal := await _find_refusal(prober, accepted)) is not None:
        refusals.append(refusal)
        following = forms.next_after(refusal)
        if isinstance(following, APIStatusError):
            detail = (
                "the server does not tell what it reads; it answers "
                f"{following.status_code} to an unknown model"
            )
            return CheckResult(
                "wire",
                "note",
                f"{detail}. Training requests are sent as {_NAMES[first.media]} first",
            )
        accepted = following
    forms.accept()
    chosen = ", as TINKER_WIRE says" if choice != "auto" else ""
    why = (
        f", as the server answers {refusals[0].status_code} to {_NAMES[first.media]}"
        if accepted != first
        else chosen
    )
    return CheckResult("wire", "ok", f"training requests are sent as {_NAMES[accepted.media]}{why}")


async def _find_refusal(prober: Prober, form: WireFormat) -> APIStatusError | None:
    """Send a request in this format; return the refusal, None if the server accepts the format."""
    try:
        await prober.answer(_request_for_unknown_model(form))
    except APIStatusError as error:
        if _is_about_the_format(error):
            return error
    return None


def _request_for_unknown_model(form: WireFormat) -> Request[Any]:
    """Return a training request for a model that does not exist."""
    datum = Datum(
        ModelInput.from_ints([1_000_000]), {"target_tokens": [1_000_000], "weights": [1.0]}
    )
    if form.media == "proto":
        body = proto.encode_forward_backward(_UNKNOWN_MODEL, 1, [datum], "cross_entropy")
        return training_api.forward_backward(Binary(proto.MEDIA_TYPE, body))
    inputs = models.ForwardBackwardInput(data=json.wire_data([datum]), loss_fn="cross_entropy")
    return training_api.forward_backward(
        models.ForwardBackwardRequest(
            forward_backward_input=inputs, model_id=_UNKNOWN_MODEL, seq_id=1
        )
    )


def _is_about_the_format(error: APIStatusError) -> bool:
    """Return whether a refusal may be about the format of the body. A server that names the model
    has decoded it.
    """
    return (
        statuses.is_format_refused(error) or statuses.is_unexplained(error)
    ) and _UNKNOWN_MODEL not in str(error.body)


# No operation has this method, so it never reaches one: a server that knows the path refuses the
# method.
_HARMLESS_METHOD = "PATCH"
_NO_OPERATION = "/api/v1/no_such_operation"
_CONCURRENT_REQUESTS = 8


async def find_operations(prober: Prober) -> dict[str, Support]:
    """Find out for each operation whether its path exists; unknown if the server answers all paths
    alike.
    """
    slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def probe(path: str) -> Support:
        request: Request[None] = Request(
            operation="doctor", method=_HARMLESS_METHOD, path=path, reply=None
        )
        async with slots:
            try:
                status = (await prober.answer(request)).status
            except APIStatusError as error:
                status = error.status_code
            except TinkerError:
                return "unknown"
        return (
            "yes"
            if status == statuses.WRONG_METHOD_STATUS
            else "no"
            if status in ABSENT_STATUSES
            else "unknown"
        )

    paths = {name: _example_path(operation) for name, operation in OPERATIONS.items()}
    unique = sorted({*paths.values(), _NO_OPERATION})
    support = dict(zip(unique, await asyncio.gather(*map(probe, unique))))
    if support[_NO_OPERATION] != "no" or support[paths["get_server_capabilities"]] != "yes":
        return dict.fromkeys(paths, "unknown")
    return {name: support[path] for name, path in paths.items()}


def _example_path(operation: Operation) -> str:
    """Return the path with names of objects that do not exist."""
    return re.sub(
        r"\{[^}]*\}", "doctor", operation.path.replace("{checkpoint_id}", "weights/doctor")
    )


def summarize_operations(operations: Mapping[str, Support]) -> CheckResult:
    """Count the operations and name the missing ones."""
    missing = sorted(name for name, support in operations.items() if support == "no")
    if "yes" not in operations.values():
        return CheckResult("operations", "note", "the server does not tell which it has")
    present = sum(support == "yes" for support in operations.values())
    rest = f"; missing: {', '.join(missing)}" if missing else ""
    return CheckResult(
        "operations", "note" if missing else "ok", f"{present} of {len(operations)}{rest}"
    )
