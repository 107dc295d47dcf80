"""A model under test: its requests, numbered as they are made, and small data that any vocabulary has."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Binary, Request

from tinker._wire import json, proto
from tinker.testing.conformance.context import CheckContext, PendingResult
from tinker.testing.conformance.outcome import Absent, Contradiction, Differs, Failed, Refused, optional
from tinker.testing.conformance.run_state import BodyFormat
from tinker.types.datum import Datum
from tinker.types.model_input import ModelInput
from tinker.types.results import ForwardBackwardOutput

Floats: TypeAlias = NDArray[np.float64]
TrainingScript: TypeAlias = "Callable[[TrainingFixture], None]"

STILL = models.AdamParams(learning_rate=0.0)
ADAM = models.AdamParams(learning_rate=0.01)

_UNREADABLE = frozenset({400, 404, 406, 415, 422})
#: The adapter of a model that is created without another one. Adapters of equal seed begin equal.
LORA = models.LoraConfig(rank=8, seed=11)
#: With an `eps` far above the gradient, and without momentum, Adam's step is the gradient times `learning_rate / eps`. Some
#: servers take none above 1.
_LARGEST_EPS = 1.0
#: What the loss of a request is called, and what another server calls it.
_LOSSES = ("loss:sum", "total_loss:sum")
_CALIBRATION_MODELS = range(900, 905)


def datum(tokens: Sequence[int] = (5, 6, 7, 8), targets: Sequence[int] | None = None, **inputs: Any) -> Datum:
    """Return a datum whose target at each place is the next token, unless ``targets`` are given.

    As in the data of most programs each token has its weight, 1.0; other ``inputs`` stand in place of the weights.
    """
    wanted = [*tokens[1:], tokens[0]] if targets is None else list(targets)
    return Datum(ModelInput.from_ints(list(tokens)), {"target_tokens": wanted, **(inputs or {"weights": [1.0] * len(wanted)})})


def targets_alone(one: Datum) -> Datum:
    """Return the same datum with its targets alone."""
    return Datum(one.model_input, {"target_tokens": one.loss_fn_inputs["target_tokens"]})


ONE, OTHER = datum((5, 6, 7, 8)), datum((9, 10, 11))
DATA = (ONE, OTHER)


class TrainingFixture:
    """One model. Requests take the next number unless one is given."""

    def __init__(self, context: CheckContext, model_id: str, number: int = 1) -> None:
        self.context = context
        self.model_id = model_id
        self.number: int = number

    def _take_number(self, number: int | None) -> int:
        if number is not None:
            return number
        self.number += 1
        return self.number - 1

    # ---------------------------------------------------------------------------------------------------------------- losses

    def loss(
        self,
        data: Sequence[Datum] = DATA,
        loss_fn: str = "cross_entropy",
        config: Mapping[str, float | str] | None = None,
        *,
        backward: bool = True,
        number: int | None = None,
        form: BodyFormat | None = None,
        **options: Any,
    ) -> PendingResult[ForwardBackwardOutput]:
        """Submit a loss, in the form that the server takes unless one is given."""
        self.context.need("training.loss")
        at = self._take_number(number)
        chosen = form or self.context.known.form
        if chosen is not None:
            request = self.request(chosen, data, loss_fn, config, at, backward=backward)
            return self.context.submit(request, ForwardBackwardOutput, **options)
        return self._first_loss(data, loss_fn, config, at, backward=backward, **options)

    def _first_loss(
        self,
        data: Sequence[Datum],
        loss_fn: str,
        config: Mapping[str, float | str] | None,
        number: int,
        *,
        backward: bool,
        **options: Any,
    ) -> PendingResult[ForwardBackwardOutput]:
        """Find out which form the server takes: protobuf, as clients of today send it, else JSON."""
        context, known = self.context, self.context.known
        known.form = "proto"
        request = self.request("proto", data, loss_fn, config, number, backward=backward)
        try:
            answer = context.send(request, **options)
        except Contradiction:  # some servers fail over a body that they cannot read; `wires.protobuf` is about that
            answer = None
        if answer is None or answer.status in _UNREADABLE:
            known.form = "json"
            request = self.request("json", data, loss_fn, config, number, backward=backward)
            answer = context.send(request, **options)
        return context.accept(request, answer, ForwardBackwardOutput)

    def request(
        self,
        form: BodyFormat,
        data: Sequence[Datum] = DATA,
        loss_fn: str = "cross_entropy",
        config: Mapping[str, float | str] | None = None,
        number: int = 1,
        *,
        backward: bool = True,
    ) -> Request[models.UntypedAPIFuture]:
        """Return the request of a loss in one of its forms."""
        if form == "proto":
            parts = proto.encode_forward_backward(self.model_id, number, data, loss_fn, config or {}, forward_only=not backward)
            return training_api.forward_backward(Binary(proto.MEDIA_TYPE, parts))
        what = models.ForwardBackwardInput(
            data=json.wire_data(data), loss_fn=loss_fn, loss_fn_config=None if config is None else dict(config)
        )
        if backward:
            body = models.ForwardBackwardRequest(forward_backward_input=what, model_id=self.model_id, seq_id=number)
            return training_api.forward_backward(body)
        return training_api.forward(models.ForwardRequest(forward_input=what, model_id=self.model_id, seq_id=number))

    def output(self, *args: Any, **options: Any) -> ForwardBackwardOutput:
        """Return the result of :meth:`loss` with the same arguments."""
        return self.context.result(self.loss(*args, **options))

    def logprobs(self, data: Sequence[Datum] = DATA) -> Floats:
        """Return the log-probability of each target of the data, in one row; computed without a gradient."""
        return logprobs_of(self.output(data, backward=False), data)

    # ---------------------------------------------------------------------------------------------------------------- steps

    def step(
        self, params: models.AdamParams | None = None, *, number: int | None = None, **options: Any
    ) -> PendingResult[models.OptimStepResponse]:
        """Submit an optimizer step; without parameters one that is as long as the gradient."""
        self.context.need("training.step")
        chosen = params or gradient_params(self.context)
        body = models.OptimStepRequest(model_id=self.model_id, seq_id=self._take_number(number), adam_params=chosen)
        return self.context.submit(training_api.optim_step(body), models.OptimStepResponse, **options)

    def learn(self, data: Sequence[Datum] = DATA, params: models.AdamParams | None = None) -> None:
        """One loss and one step, finished."""
        self.context.result(self.loss(data))
        self.context.result(self.step(params))

    # ---------------------------------------------------------------------------------------------------------------- saves

    def save(self, name: str, **fields: Any) -> PendingResult[models.SaveWeightsResponse]:
        """Submit a save to train on."""
        self.context.need("weights.save")
        given: dict[str, Any] = {"model_id": self.model_id, "seq_id": self._take_number(None), "path": name, **fields}
        return self.context.submit(weights_api.save_weights(models.SaveWeightsRequest(**given)), models.SaveWeightsResponse)

    def save_and_wait(self, name: str, **fields: Any) -> str:
        """Return the path of a finished save."""
        path = self.context.result(self.save(name, **fields)).path
        self.context.cleanup.checkpoints.append(path)
        return path

    def save_for_sampler(self, **fields: Any) -> models.SaveWeightsForSamplerResponseInternal:
        """Return a finished save to sample from: with ``path`` under a name, with ``sampling_session_seq_id`` as a session."""
        given: dict[str, Any] = {"model_id": self.model_id, "seq_id": self._take_number(None), **fields}
        body = models.SaveWeightsForSamplerRequest(**given)
        kind = models.SaveWeightsForSamplerResponseInternal
        saved = self.context.result(self.context.submit(weights_api.save_weights_for_sampler(body), kind))
        self.context.cleanup.checkpoints += [saved.path] if saved.path else []
        return saved

    def export(self, name: str) -> str:
        """Return the path of weights that are saved as files. Absent when the server does not do that."""
        body = models.SaveWeightsExternalRequest(model_id=self.model_id, path=name, seq_id=self._take_number(None))
        kind = models.SaveWeightsExternalResponseInternal
        with optional():
            saved = self.context.result(self.context.submit(weights_api.save_weights_external(body), kind))
        path = saved.path or f"tinker://{self.model_id}/external_weights/{name}"
        self.context.cleanup.checkpoints.append(path)
        return path

    def load(self, path: str, *, optimizer: bool = False) -> PendingResult[models.LoadWeightsResponse]:
        """Submit a load as the first request of the model."""
        body = models.LoadWeightsRequest(model_id=self.model_id, seq_id=1, path=path, optimizer=optimizer)
        self.number = 2
        return self.context.submit(weights_api.load_weights(body), models.LoadWeightsResponse)


def fresh_name() -> str:
    """Return a name that no checkpoint has."""
    return f"conformance-{uuid.uuid4().hex[:8]}"


def creation(context: CheckContext, number: int = 0, **fields: Any) -> Request[models.UntypedAPIFuture]:
    """Return the request that creates model ``number`` of the check's session."""
    given: dict[str, Any] = {
        "session_id": context.session(),
        "model_seq_id": context.number(number),
        "base_model": context.base_model(),
        "lora_config": LORA,
        **fields,
    }
    body = models.CreateModelRequest(**given)
    return training_api.create_model(body)


def create(context: CheckContext, number: int = 0, **fields: Any) -> TrainingFixture:
    """Return a model that exists."""
    context.need("training.model")
    promise = context.submit(creation(context, number, **fields), models.CreateModelResponse)
    return adopt(context, context.result(promise).model_id)


def borrow(context: CheckContext) -> TrainingFixture:
    """Return a model that only computes, and takes no step: a new one, or where models cannot be freed one for many checks."""
    known = context.known
    if "unload_model" not in known.lacking:
        return create(context)
    spare, known.spare = known.spare, None
    fixture = create(context) if spare is None else TrainingFixture(context, spare[0], spare[1])
    context.lend(lambda: (fixture.model_id, fixture.number))
    return fixture


def adopt(context: CheckContext, model_id: str) -> TrainingFixture:
    """Return a model that the check has made, and frees."""
    context.cleanup.models.append(model_id)
    return TrainingFixture(context, model_id)


def measure_learning(context: CheckContext, number: int, script: TrainingScript) -> tuple[Floats, Floats]:
    """Return the logprobs of the data before and after what ``script`` does with a new model.

    Those of two models can be compared where adapters of equal seed begin equal, which ``training.seed`` is about.
    """
    fixture = create(context, number)
    before = fixture.logprobs()
    script(fixture)
    return before, fixture.logprobs()


def gradient_params(context: CheckContext, **fields: float) -> models.AdamParams:
    """Return a step as long as the gradient, where Adam's usual step has one length: gradients that count twice, or not, show.

    Its rate is found once for a server, so that one step moves the logprobs visibly and not too far.
    """
    known = context.known
    if known.rate is None:
        try:
            known.rate = _calibrate(context)
        except (Refused, Failed):
            if known.eps == _LARGEST_EPS:
                raise
            known.eps = _LARGEST_EPS
            known.rate = _calibrate(context)
    return _descent(context, known.rate, **fields)


def _descent(context: CheckContext, rate: float, **fields: float) -> models.AdamParams:
    eps = context.known.eps
    given: dict[str, float] = {"learning_rate": rate * eps, "beta1": 0.0, "beta2": 0.0, "eps": eps, **fields}
    return models.AdamParams(**given)


def _calibrate(context: CheckContext) -> float:
    rate = 1e-3
    first = 0 if context.known.eps > _LARGEST_EPS else len(_CALIBRATION_MODELS)
    for number in _CALIBRATION_MODELS:
        params = _descent(context, rate)
        before, after = measure_learning(context, first + number, partial(TrainingFixture.learn, params=params))
        moved = distance(before, after)
        if moved == 0.0 or 0.1 <= moved <= 1.0:
            break
        rate *= min(max(0.3 / moved, 1e-2), 1e2)
    return rate


def logprobs_of(output: ForwardBackwardOutput, data: Sequence[Datum] = DATA) -> Floats:
    """Return the ``logprobs`` of a result in one row. Contradiction unless there are as many as targets, all finite."""
    rows: list[Floats] = []
    for index, fields in enumerate(output.loss_fn_outputs):
        if "logprobs" not in fields:
            raise Absent(f"loss_fn_outputs hold {', '.join(fields) or 'nothing'}, but no logprobs")
        rows.append(np.asarray(fields["logprobs"].to_numpy(), np.float64).reshape(-1))
        wanted = data[index].loss_fn_inputs["target_tokens"].to_numpy().size if index < len(data) else -1
        if len(rows[-1]) != wanted:
            raise Contradiction(f"datum {index} has {wanted} targets and {len(rows[-1])} logprobs")
    if len(rows) != len(data):
        raise Contradiction(f"{len(data)} datums went in and {len(rows)} outputs came out")
    joined = np.concatenate(rows)
    if not np.isfinite(joined).all() or (joined > 1e-3).any():
        raise Contradiction(f"log-probabilities are finite and not positive, these are not: {joined.tolist()}")
    return joined


def loss_of(context: CheckContext, output: ForwardBackwardOutput) -> float:
    """Return the loss of a result. Differs when the server sends none; another name than the document's is noted."""
    for name in _LOSSES:
        if name in output.metrics:
            how = f"the loss is the metric {name}, not {_LOSSES[0]}, which custom losses need"
            context.expect(
                name == _LOSSES[0], how, "name of the loss", operation="forward_backward", schema="ForwardBackwardOutput"
            )
            return output.metrics[name]
    how = f"the metrics are {', '.join(sorted(output.metrics)) or 'none'}, not {_LOSSES[0]}"
    raise Differs(how, cause="name of the loss", operation="forward_backward", schema="ForwardBackwardOutput")


def distance(one: Floats, other: Floats) -> float:
    """Return the largest difference."""
    return float(np.max(np.abs(one - other)))


def effect(before: Floats, after: Floats) -> float:
    """Return how far training moved the logprobs. Contradiction when a gradient and a step moved nothing: the step is lost."""
    moved = distance(before, after)
    if moved < 1e-5:
        raise Contradiction("a loss with a gradient and a step with a rate changed nothing: the step is lost")
    return moved


def are_near(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether a model and the one that was saved and loaded are the same; saves may be rounded to half precision."""
    return distance(one, other) <= min(0.25 * moved + 0.05, 0.5 * moved) + 1e-5


def are_alike(one: Floats, other: Floats, moved: float) -> bool:
    """Return whether two results of training are the same, but for rounding, where training moved them by ``moved``."""
    return distance(one, other) <= 0.05 * moved + 1e-5
