"""The format in which training requests will be sent, found out as clients do."""

from __future__ import annotations

from typing import Any

from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.runtime import Binary, Request

from tinker._http import FormAttempt, Negotiation, WireFormat, is_format_refused, is_unexplained
from tinker._wire import json, proto
from tinker.cli.commands.doctor.prober import Prober
from tinker.cli.commands.doctor.report import CheckResult
from tinker.errors import APIStatusError
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
            said = following.status_code
            detail = f"the server does not tell what it reads; it answers {said} to a model that it cannot know"
            return CheckResult("wire", "note", f"{detail}. Training requests are sent as {_NAMES[first.media]} first")
        accepted = following
    forms.accept()
    why = ", as TINKER_WIRE says" if choice != "auto" else ""
    if accepted != first:
        why = f", as the server answers {refusals[0].status_code} to {_NAMES[first.media]}"
    return CheckResult("wire", "ok", f"training requests are sent as {_NAMES[accepted.media]}{why}")


async def _find_refusal(prober: Prober, form: WireFormat) -> APIStatusError | None:
    """Ask whether the server reads a format; return its refusal, None where it does."""
    try:
        await prober.answer(_request_for_unknown_model(form))
    except APIStatusError as error:
        if _is_about_the_format(error):
            return error
    return None


def _request_for_unknown_model(form: WireFormat) -> Request[Any]:
    """Return a training request; its protobuf body is not valid text, like those of clients."""
    datum = Datum(ModelInput.from_ints([1_000_000]), {"target_tokens": [1_000_000], "weights": [1.0]})
    if form.media == "proto":
        body = proto.encode_forward_backward(_UNKNOWN_MODEL, 1, [datum], "cross_entropy")
        return training_api.forward_backward(Binary(proto.MEDIA_TYPE, body))
    inputs = models.ForwardBackwardInput(data=json.wire_data([datum]), loss_fn="cross_entropy")
    return training_api.forward_backward(
        models.ForwardBackwardRequest(forward_backward_input=inputs, model_id=_UNKNOWN_MODEL, seq_id=1)
    )


def _is_about_the_format(error: APIStatusError) -> bool:
    """Return whether a refusal may be about the format of the body. A server that names the model has read it."""
    return (is_format_refused(error) or is_unexplained(error)) and _UNKNOWN_MODEL not in str(error.body)
