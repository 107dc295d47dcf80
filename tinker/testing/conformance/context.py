"""What one check works with: its session, and the models and samplers under test, whose requests
are numbered as they are made.

Whatever a check makes belongs to its session, and is deleted at its end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Binary, Request

from tinker._wire import json, proto
from tinker.testing.conformance.outcome import (
    Absent,
    CheckEnd,
    Contradiction,
    Differs,
    Failed,
    Observation,
    Outcome,
    Refused,
    optional,
)
from tinker.testing.conformance.run_state import BodyFormat
from tinker.testing.conformance.session import NO_RESULT, CheckSession, PendingResult
from tinker.testing.conformance.values import (
    DATA,
    LORA,
    PROMPT,
    Floats,
    distance,
    logprobs_of,
    without_weight,
)
from tinker.types.datum import Datum
from tinker.types.results import ForwardBackwardOutput, SampleResponse

TrainingScript: TypeAlias = "Callable[[TrainingFixture], None]"

_UNREADABLE = frozenset({400, 404, 406, 415, 422})
#: With an `eps` far above the gradient, and without momentum, Adam's step is the gradient times
#: `learning_rate / eps`. Some servers take none above 1.
_LARGEST_EPS = 1.0
#: What the loss of a request is called, and what another server calls it.
_LOSSES = ("loss:sum", "total_loss:sum")
_CALIBRATION_MODELS = range(900, 905)
_PARAMS = frozenset(models.SamplingParams.__struct_fields__)


def fresh_name() -> str:
    """Return a name that no checkpoint has."""
    return f"conformance-{uuid.uuid4().hex[:8]}"


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

    # --------------------------------------------------------------------------------------- losses

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
        request = partial(
            self.request, data=data, loss_fn=loss_fn, config=config, number=at, backward=backward
        )
        chosen = form or self.context.known.form
        if chosen is None:
            return self._find_form(request, **options)
        return self.context.submit(request(chosen), ForwardBackwardOutput, **options)

    def _find_form(
        self, request: Callable[[BodyFormat], Request[models.UntypedAPIFuture]], **options: Any
    ) -> PendingResult[ForwardBackwardOutput]:
        """Send a loss in the form that the server takes: protobuf, as current clients send it, else
        JSON.
        """
        context, known = self.context, self.context.known
        known.form = "proto"
        try:
            answer = context.send(request("proto"), **options)
        except Contradiction:
            # some servers fail over a body that they cannot read; `wires.protobuf` is about that
            answer = None
        if answer is None or answer.status in _UNREADABLE:
            known.form = "json"
            answer = context.send(request("json"), **options)
        return context.accept(request(known.form), answer, ForwardBackwardOutput)

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
            parts = proto.encode_forward_backward(
                self.model_id, number, data, loss_fn, config or {}, forward_only=not backward
            )
            return training_api.forward_backward(Binary(proto.MEDIA_TYPE, parts))
        what = models.ForwardBackwardInput(
            data=json.wire_data(data),
            loss_fn=loss_fn,
            loss_fn_config=None if config is None else dict(config),
        )
        if backward:
            body = models.ForwardBackwardRequest(
                forward_backward_input=what, model_id=self.model_id, seq_id=number
            )
            return training_api.forward_backward(body)
        return training_api.forward(
            models.ForwardRequest(forward_input=what, model_id=self.model_id, seq_id=number)
        )

    def output(self, *args: Any, **options: Any) -> ForwardBackwardOutput:
        """Return the result of :meth:`loss` with the same arguments."""
        return self.context.result(self.loss(*args, **options))

    def logprobs(self, data: Sequence[Datum] = DATA) -> Floats:
        """Return the log-probability of each target of the data, in one row; computed without a
        gradient.

        With a gradient of zeros if the server has no forward pass, which is noted once.
        """
        lacking, number = self.context.known.lacking, self.number
        if "forward" not in lacking:
            try:
                output = self.output(data, backward=False)
                return logprobs_of(
                    output,
                    data,
                    "forward" if self.context.known.form == "json" else "forward_backward",
                )
            except Absent as error:
                lacking.add("forward")
                how = f"losses are read only as JSON, and {error}"
                self.context.note(
                    Observation(how, "no forward pass", Outcome.CONTRADICTION, "forward")
                )
                self.number = number
        return logprobs_of(self.output([without_weight(one) for one in data]), data)

    # ---------------------------------------------------------------------------------------- steps

    def step(
        self, params: models.AdamParams | None = None, *, number: int | None = None, **options: Any
    ) -> PendingResult[models.OptimStepResponse]:
        """Submit an optimizer step; without parameters one that is as long as the gradient."""
        self.context.need("training.step")
        chosen = params or self.context.gradient_params()
        body = models.OptimStepRequest(
            model_id=self.model_id, seq_id=self._take_number(number), adam_params=chosen
        )
        return self.context.submit(
            training_api.optim_step(body), models.OptimStepResponse, **options
        )

    def step_without_gradient(self) -> None:
        """Take a step that has nothing to apply; a refusal is noted, and leaves the
        model as it is.
        """
        try:
            self.context.result(self.step())
        except (Failed, Refused) as error:
            self.context.note_difference(
                f"a step without a gradient is refused: {error}",
                "step without a gradient",
                "optim_step",
            )

    def learn(self, data: Sequence[Datum] = DATA, params: models.AdamParams | None = None) -> None:
        """Compute a loss and take a step, and wait for both."""
        self.context.result(self.loss(data))
        self.context.result(self.step(params))

    # ---------------------------------------------------------------------------------------- saves

    def save(self, name: str, **fields: Any) -> PendingResult[models.SaveWeightsResponse]:
        """Submit a save to train on."""
        self.context.need("weights.save")
        given: dict[str, Any] = {
            "model_id": self.model_id,
            "seq_id": self._take_number(None),
            "path": name,
            **fields,
        }
        self.context.cleanup.add(f"tinker://{self.model_id}/weights/{name}")
        return self.context.submit(
            weights_api.save_weights(models.SaveWeightsRequest(**given)), models.SaveWeightsResponse
        )

    def save_and_wait(self, name: str | None = None, **fields: Any) -> str:
        """Return the path of a finished save, under a new name unless one is given."""
        return self.context.cleanup.add(
            self.context.result(self.save(name or fresh_name(), **fields)).path
        )

    def save_for_sampler(self, **fields: Any) -> models.SaveWeightsForSamplerResponseInternal:
        """Return a finished save to sample from: with ``path`` under a name, with
        ``sampling_session_seq_id`` as a session.
        """
        given: dict[str, Any] = {
            "model_id": self.model_id,
            "seq_id": self._take_number(None),
            **fields,
        }
        body = models.SaveWeightsForSamplerRequest(**given)
        if body.path:
            self.context.cleanup.add(f"tinker://{self.model_id}/sampler_weights/{body.path}")
        saved = self.context.run(
            weights_api.save_weights_for_sampler(body), models.SaveWeightsForSamplerResponseInternal
        )
        wanted, found = (
            ("path", saved.path)
            if body.path
            else ("sampling_session_id", saved.sampling_session_id)
        )
        told = f"the result of save_weights_for_sampler has no `{wanted}`"
        self.context.require(found is not None, told, NO_RESULT, "save_weights_for_sampler")
        self.context.cleanup.checkpoints += [saved.path] if saved.path else []
        return saved

    def export(self) -> str:
        """Return the path of weights that are saved as files. Absent when the server does not do
        that.
        """
        name = fresh_name()
        body = models.SaveWeightsExternalRequest(
            model_id=self.model_id, path=name, seq_id=self._take_number(None)
        )
        path = self.context.cleanup.add(f"tinker://{self.model_id}/external_weights/{name}")
        with optional():
            saved = self.context.run(
                weights_api.save_weights_external(body), models.SaveWeightsExternalResponseInternal
            )
        return self.context.cleanup.add(saved.path or path)

    def load(
        self, path: str, *, optimizer: bool = False
    ) -> PendingResult[models.LoadWeightsResponse]:
        """Submit a load as the first request of the model."""
        body = models.LoadWeightsRequest(
            model_id=self.model_id, seq_id=1, path=path, optimizer=optimizer
        )
        self.number = 2
        return self.context.submit(weights_api.load_weights(body), models.LoadWeightsResponse)

    def unload(self) -> models.UnloadModelResponse:
        """Unload the model, which needs no cleanup then."""
        body = models.UnloadModelRequest(model_id=self.model_id)
        found = self.context.run(training_api.unload_model(body), models.UnloadModelResponse)
        self.context.cleanup.models.remove(self.model_id)
        return found


class SamplingFixture:
    """One sampling session. Requests take the next number unless one is given."""

    def __init__(self, context: CheckContext, sampling_session_id: str) -> None:
        self.context = context
        self.sampling_session_id = sampling_session_id
        self.number: int = 0

    def body(
        self, prompt: Sequence[int] = PROMPT, *, number: int | None = None, **fields: Any
    ) -> models.SampleRequest:
        """Return a request; ``fields`` may be those of the request and those of its sampling
        parameters.
        """
        if number is None:
            number, self.number = self.number, self.number + 1
        params: dict[str, Any] = {
            "max_tokens": 5,
            "stop": [],
            **{name: fields.pop(name) for name in _PARAMS & fields.keys()},
        }
        return models.SampleRequest(
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(**params),
            sampling_session_id=self.sampling_session_id,
            seq_id=number,
            **fields,
        )

    def submit(self, *args: Any, **fields: Any) -> PendingResult[SampleResponse]:
        """Submit the request of :meth:`body` with the same arguments."""
        self.context.need("sampling.sample")
        request = sampling_api.asample(
            self.body(*args, **fields), x_tinker_sampling_backpressure="1"
        )
        return self.context.submit(request, SampleResponse)

    def sample(self, *args: Any, **fields: Any) -> SampleResponse:
        """Return the result of :meth:`submit`."""
        return self.context.result(self.submit(*args, **fields))

    def scores(self) -> Floats:
        """Return the logprobs of the prompt after its first token."""
        found = self.context.prompt_scores(
            self.sample(prompt_logprobs=True, max_tokens=1).prompt_logprobs
        )
        return np.array([0.0 if value is None else value for value in found[1:]], np.float64)


class CheckContext(CheckSession):
    """What one check works with: its session, and the models and samplers that it makes."""

    _lent: TrainingFixture | None = None
    _made: tuple[TrainingFixture, ...] = ()

    # --------------------------------------------------------------------------------------- models

    def creation(self, number: int = 0, **fields: Any) -> Request[models.UntypedAPIFuture]:
        """Return the request that creates model ``number`` of the check's session."""
        given: dict[str, Any] = {"base_model": self.base_model(), "lora_config": LORA, **fields}
        given = {"session_id": self.session(), "model_seq_id": self.number(number), **given}
        return training_api.create_model(models.CreateModelRequest(**given))

    def create(self, number: int = 0, **fields: Any) -> TrainingFixture:
        """Create a model."""
        self.need("training.model")
        return self.adopt(
            self.run(self.creation(number, **fields), models.CreateModelResponse).model_id
        )

    def borrow(self) -> TrainingFixture:
        """Return a model for losses, without steps: a new one, or where neither models nor sessions
        end one for many checks.
        """
        spare, self.known.spare = self.known.spare, None
        if not self.known.lacking >= {"unload_model", "finish_session"}:
            return self.create()
        self._lent = self.create() if spare is None else TrainingFixture(self, *spare)
        return self._lent

    def adopt(self, model_id: str) -> TrainingFixture:
        """Return a model that the check has made, and must unload."""
        self.cleanup.models.append(model_id)
        self._made += (TrainingFixture(self, model_id),)
        return self._made[-1]

    def close(self, *, at_end: bool = True) -> None:
        """Delete what the check has made. If it came to its end, another check may use the model
        that it borrowed.
        """
        if self._lent is not None and at_end:
            self.known.spare = (self._lent.model_id, self._lent.number)
        for fixture in [
            one
            for one in self._made
            if self.known.leaves_gradients and one.model_id in self.cleanup.models
        ]:
            # a step that changes nothing, and leaves no gradient to the models of other checks
            with suppress(CheckEnd):
                self.result(fixture.step(models.AdamParams(learning_rate=0.0)))
        super().close()

    def note_leftover_gradient(self, moved: float) -> None:
        """Report that the first step of a new model has moved its logprobs. Later checks step
        before they unload a model.
        """
        self.known.leaves_gradients = True
        how = (
            "the first step of a new model uses the gradient of an unloaded one: "
            f"its logprobs move by {moved:g}"
        )
        self.note(Observation(how, "leftover gradient", Outcome.CONTRADICTION, "unload_model"))

    # ---------------------------------------------------------------------------------------- steps

    def measure(self, number: int, script: TrainingScript) -> tuple[Floats, Floats]:
        """Return the logprobs of the data before and after what ``script`` does with a new model.

        Those of two models can be compared where adapters of equal seed begin equal, which
        ``training.seed`` is about.
        """
        self.need("training.forward_only")
        fixture = self.create(number)
        before = fixture.logprobs()
        script(fixture)
        return before, fixture.logprobs()

    def gradient_params(self, **fields: float) -> models.AdamParams:
        """Return the parameters of a step as long as the gradient: gradients that count twice, or
        not, show.

        Adam's usual step has one length. The rate is found once for a server, so that one step
        moves the logprobs visibly and not too far.
        """
        if self.known.rate is None:
            try:
                self.known.rate = self._calibrate()
            except (Refused, Failed):
                if self.known.eps == _LARGEST_EPS:
                    raise
                self.known.eps = _LARGEST_EPS
                self.known.rate = self._calibrate()
        return self._descent(self.known.rate, **fields)

    def _descent(self, rate: float, **fields: float) -> models.AdamParams:
        eps = self.known.eps
        given: dict[str, float] = {
            "learning_rate": rate * eps,
            "beta1": 0.0,
            "beta2": 0.0,
            "eps": eps,
            **fields,
        }
        return models.AdamParams(**given)

    def _calibrate(self) -> float:
        rate = 1e-3
        first = 0 if self.known.eps > _LARGEST_EPS else len(_CALIBRATION_MODELS)
        for number in _CALIBRATION_MODELS:
            params = self._descent(rate)
            moved = distance(
                *self.measure(first + number, partial(TrainingFixture.learn, params=params))
            )
            if moved == 0.0 or 0.1 <= moved <= 1.0:
                break
            rate *= min(max(0.3 / moved, 1e-2), 1e2)
        return rate

    def loss_of(self, output: ForwardBackwardOutput) -> float:
        """Return the loss of a result. Differs when the server sends none; another name than the
        document's is noted.
        """
        about = ("name of the loss", "forward_backward", "ForwardBackwardOutput")
        for name in _LOSSES:
            if name in output.metrics:
                how = f"the loss is the metric {name}, not {_LOSSES[0]}, which custom losses need"
                self.expect(name == _LOSSES[0], how, *about)
                return output.metrics[name]
        raise Differs(
            f"the metrics are {', '.join(sorted(output.metrics)) or 'none'}, not {_LOSSES[0]}",
            *about,
        )

    # -------------------------------------------------------------------------------------- samples

    def sampler(self, number: int = 0, *, model_path: str | None = None) -> SamplingFixture:
        """Create a sampling session on the base model, or on saved weights."""
        self.need("sampling.session")
        body = models.CreateSamplingSessionRequest(
            session_id=self.session(),
            sampling_session_seq_id=self.number(number),
            base_model=self.base_model() if model_path is None else None,
            model_path=model_path,
        )
        return SamplingFixture(
            self, self.call(sampling_api.create_sampling_session(body)).sampling_session_id
        )

    def prompt_scores(self, found: Sequence[float | None] | None) -> Sequence[float | None]:
        """Return the logprobs of the tokens of ``PROMPT``. Contradiction unless there is one for
        each.
        """
        self.need("sampling.prompt_logprobs")
        about = ("prompt logprobs", "asample", "SampleResponse")
        scores, count = list(found or ()), "none" if found is None else len(found)
        how = (
            f"the prompt has {len(PROMPT)} tokens and {count} logprobs; there is one for each, "
            "null for the first"
        )
        self.require(len(scores) == len(PROMPT), how, *about)
        self.require(
            scores[0] is None, f"the first logprob is {scores[0]}, and nothing is before it", *about
        )
        return scores
