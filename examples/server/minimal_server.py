"""A small server that clients can train on: the seventeen mandatory operations of the contract, and
no other.

    python examples/server/minimal_server.py --port 8000
    TINKER_BASE_URL=http://localhost:8000 python examples/other_servers.py

Copy it, and put your engine in place of `toy_model.py`. Addresses, records and the forms of bodies
come from the contract. All of it runs on one event loop: each request is carried out as soon as its
turn has come, and nothing outlives the process.
"""

import argparse
import asyncio
import datetime
import json
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker_wire import models
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Operation
from toy_model import CONTEXT, NAME, Adapter

from tinker import types, wire

#: Whose number a request has, and which. The others are of a run.
NUMBERED = {
    "create_model": ("sessions", "session_id", "model_seq_id"),
    "asample": ("samplers", "sampling_session_id", "seq_id"),
}


class Refusal(Exception):
    """A request that is not carried out: a status of 400 or more, and what is wrong."""


class Owner:
    """A session, a run or a sampling session: each numbers its requests. Those of a run, from 1,
    are carried out in order.
    """

    def __init__(self, adapter: Adapter | None = None, rank: int | None = None) -> None:
        self.adapter, self.about, self.is_ordered = (
            adapter,
            {"is_lora": True, "lora_rank": rank},
            rank is not None,
        )
        self.submitted, self.waiting = (
            dict[int, tuple[bytes, str]](),
            dict[int, Callable[[], None]](),
        )
        self.next_number, self.used = 1, now()


def find(known: Any, name: str) -> Any:
    if name not in known:
        raise Refusal(404, f"there is no {name}")
    return known[name]


def now(seconds: float = 0) -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)


class Server:
    """What the server knows, and for each operation a method that takes its body, or the words of
    its address.
    """

    def __init__(self, hold_seconds: float, gap_seconds: float) -> None:
        self.hold_seconds, self.gap_seconds, self.results = (
            hold_seconds,
            gap_seconds,
            dict[str, asyncio.Future[Any]](),
        )
        self.refusals = dict[str, Refusal]()
        self.sessions, self.runs, self.samplers = (
            dict[str, Owner](),
            dict[str, Owner](),
            dict[str, Owner](),
        )
        self.checkpoints = dict[str, tuple[Adapter, models.Checkpoint, Owner]]()

    # Futures: the same request under the same number is the same future, and another one is
    # refused.

    def submit(self, operation: Operation, body: Any, content: bytes) -> models.UntypedAPIFuture:
        kind, owner_field, number_field = NUMBERED.get(
            operation.operation_id, ("runs", "model_id", "seq_id")
        )
        owner, number = (
            find(getattr(self, kind), getattr(body, owner_field)),
            getattr(body, number_field),
        )
        known, request_id = owner.submitted.setdefault(number, (content, uuid.uuid4().hex))
        if number is None or known != content:
            raise Refusal(409, f"number {number} is that of another request")
        if request_id not in self.results:
            self.results[request_id], owner.used = asyncio.get_running_loop().create_future(), now()
            owner.waiting[number] = partial(self.carry_out, request_id, operation, body)
            self.advance(owner)
        if request_id in self.refusals:
            raise self.refusals[request_id]
        ids = [f"{request_id}:{index}" for index in range(getattr(body, "num_samples", 0))]
        return models.UntypedAPIFuture(request_id=request_id, sample_sequence_ids=ids or None)

    def advance(self, owner: Owner, given_up: int | None = None) -> None:
        while owner.waiting:
            number = min(owner.waiting)
            # wait for what is missing, but not forever
            if owner.is_ordered and number > owner.next_number != given_up:
                asyncio.get_running_loop().call_later(
                    self.gap_seconds, self.advance, owner, owner.next_number
                )
                return
            owner.waiting.pop(number)()
            owner.next_number = max(owner.next_number, number + 1)

    def carry_out(self, request_id: str, operation: Operation, body: Any) -> None:
        try:
            answer = getattr(self, operation.operation_id)(body)
        except Exception as error:  # noqa: BLE001 -- the result of a request that fails says so, and whose fault it is
            category = "user" if isinstance(error, Refusal | ValueError) else "server"
            answer = models.RequestFailedResponse(error=str(error.args[-1]), category=category)
            # where it did not have to wait for its turn, it is told at once
            if isinstance(error, Refusal):
                self.refusals[request_id] = error
        self.results[request_id].set_result(answer)

    async def retrieve_future(self, body: models.FutureRetrieveRequest) -> Any:
        result = find(self.results, body.request_id)
        await asyncio.wait([result], timeout=self.hold_seconds)
        return (
            result.result()
            if result.done()
            else models.TryAgainResponse(request_id=body.request_id, queue_state="active")
        )

    # Sessions and runs.

    def get_server_capabilities(self) -> Any:
        model = models.SupportedModel(
            model_name=NAME, max_context_length=CONTEXT, trainable=True, sampleable=True
        )
        return models.GetServerCapabilitiesResponse(supported_models=[model])

    def create_session(self, body: models.CreateSessionRequest) -> Any:
        session_id = str(uuid.uuid4())
        self.sessions[session_id] = Owner()
        return models.CreateSessionResponse(session_id=session_id)

    def create_model(self, body: models.CreateModelRequest) -> Any:
        if body.base_model != NAME or not isinstance(
            body.optimizer_config, models.AdamOptimizerConfig
        ):
            raise Refusal(400, f"this server trains {NAME} with adamw")
        model_id, config = (
            f"{body.session_id}:train:{body.model_seq_id}",
            body.lora_config or models.LoraConfig(rank=32),
        )
        self.runs[model_id] = Owner(Adapter(max(config.rank, 1), config.seed), config.rank)
        return models.CreateModelResponse(model_id=model_id)

    def get_info(self, body: models.GetInfoRequest) -> Any:
        about = {"model_name": NAME, **find(self.runs, body.model_id).about}
        return models.GetInfoResponse(
            model_id=body.model_id, model_data=models.ModelData(model_name=NAME), **about
        )

    def get_training_run(self, training_run_id: str, **_: str) -> Any:
        run = find(self.runs, training_run_id)
        about = {
            "training_run_id": training_run_id,
            "base_model": NAME,
            "model_owner": "user",
            **run.about,
        }
        return models.TrainingRun(last_request_time=run.used, **about)

    def list_training_runs(self, limit: str = "20", offset: str = "0", **_: str) -> Any:
        first, count = int(offset), int(limit)
        runs = sorted(self.runs, key=lambda run_id: self.runs[run_id].used, reverse=True)
        cursor = models.Cursor(offset=first, limit=count, total_count=len(runs))
        page = [self.get_training_run(run_id) for run_id in runs[first : first + count]]
        return models.TrainingRunsResponse(training_runs=page, cursor=cursor)

    # Training.

    def forward_backward(self, body: wire.ForwardBackwardCall) -> Any:
        adapter = self.runs[body.model_id].adapter
        logprobs, loss = adapter.train(body.loss_fn, body.data, backward=not body.forward_only)
        outputs = [{"logprobs": types.TensorData.from_numpy(row)} for row in logprobs]
        return types.ForwardBackwardOutput("ArrayRecord", outputs, {"loss:sum": loss})

    def optim_step(self, body: models.OptimStepRequest) -> Any:
        self.runs[body.model_id].adapter.step(body.adam_params or models.AdamParams())
        return models.OptimStepResponse()

    # Checkpoints: tinker://<run>/weights/<name> to train on, tinker://<run>/sampler_weights/<name>
    # to sample from.

    def save_weights(self, body: models.SaveWeightsRequest) -> Any:
        path = self.save(
            body, f"weights/{body.path or body.seq_id}", "training", overwrite=body.overwrite
        )
        return models.SaveWeightsResponse(path=path)

    def save_weights_for_sampler(self, body: models.SaveWeightsForSamplerRequest) -> Any:
        if body.path is not None:
            path = self.save(body, f"sampler_weights/{body.path}", "sampler")
            return models.SaveWeightsForSamplerResponseInternal(path=path)
        session_id = (
            f"{body.model_id}:sample:{'inflight' if body.kind == 'inflight' else body.seq_id}"
        )
        self.samplers.setdefault(session_id, Owner()).adapter = self.runs[
            body.model_id
        ].adapter.copy()
        return models.SaveWeightsForSamplerResponseInternal(sampling_session_id=session_id)

    def save(self, body: Any, checkpoint_id: str, kind: str, *, overwrite: bool = False) -> str:
        run, path = self.runs[body.model_id], f"tinker://{body.model_id}/{checkpoint_id}"
        if path in self.checkpoints and not overwrite:
            raise Refusal(409, f"there is a checkpoint {path}; `overwrite` replaces it")
        about = {
            "checkpoint_id": checkpoint_id,
            "checkpoint_type": kind,
            "user_metadata": body.user_metadata,
        }
        # a real server keeps to it
        expires_at = now(body.ttl_seconds) if body.ttl_seconds else None
        checkpoint = models.Checkpoint(tinker_path=path, time=now(), expires_at=expires_at, **about)
        self.checkpoints[path] = run.adapter.copy(), checkpoint, run
        return path

    def load_weights(self, body: models.LoadWeightsRequest) -> Any:
        run, saved = self.runs[body.model_id], find(self.checkpoints, body.path)[0].copy()
        run.adapter = saved if body.optimizer else saved.with_optimizer_of(run.adapter)
        return models.LoadWeightsResponse(path=body.path, model_id=body.model_id)

    def weights_info(self, body: models.WeightsInfoRequest) -> Any:
        return models.WeightsInfoResponse(
            base_model=NAME, **find(self.checkpoints, body.tinker_path)[2].about
        )

    def list_checkpoints(self, training_run_id: str) -> Any:
        run = find(self.runs, training_run_id)
        return models.CheckpointsListResponse(
            checkpoints=[one for _, one, owner in self.checkpoints.values() if owner is run]
        )

    def delete_checkpoint(self, training_run_id: str, checkpoint_id: str) -> None:
        path = f"tinker://{training_run_id}/{checkpoint_id}"
        find(self.checkpoints, path)
        del self.checkpoints[path]

    # Sampling.

    def create_sampling_session(self, body: models.CreateSamplingSessionRequest) -> Any:
        find(self.sessions, body.session_id)
        if (body.base_model is None) == (body.model_path is None):
            raise Refusal(400, "exactly one of base_model and model_path is needed")
        adapter = find(self.checkpoints, body.model_path)[0] if body.model_path else Adapter(1, 0)
        session_id = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
        self.samplers.setdefault(session_id, Owner(adapter))
        return models.CreateSamplingSessionResponse(sampling_session_id=session_id)

    def asample(self, body: models.SampleRequest) -> Any:
        if (
            body.topk_prompt_logprobs
            or body.target_prompt_logprobs
            or body.prompt_alt_tokens_k
            or body.prompt_logprobs_last_n
        ):
            raise Refusal(400, "of prompts this server has the logprobs, and nothing else")
        adapter, k = self.samplers[body.sampling_session_id].adapter, body.topk_sample_logprobs
        tokens = types.ModelInput.model_validate(body.prompt.model_dump()).to_ints()
        drawn = [
            adapter.sample(tokens, body.sampling_params, index, k)
            for index in range(body.num_samples)
        ]
        sequences = [
            types.SampledSequence(
                reason,
                tokens=row,
                logprobs=logprobs,
                topk_logprobs_np=types.TopkLogprobs.from_rows(best) if k else None,
            )
            for row, logprobs, best, reason in drawn
        ]
        return types.SampleResponse(
            sequences, adapter.score(tokens) if body.prompt_logprobs else None
        )


# HTTP: the contract says which operation has which address and body.


async def respond(server: Server, operation: Operation, request: Request) -> Response:
    try:
        answer = await dispatch(server, operation, request)
    except Refusal as refusal:
        status, detail = refusal.args
        return Response(json.dumps({"detail": detail}), status, media_type=wire.JSON)
    except ValueError as error:
        detail = [{"loc": ["body"], "msg": str(error), "type": "value_error"}]
        return Response(json.dumps({"detail": detail}), 422, media_type=wire.JSON)
    if answer is None:
        return Response(status_code=204)
    has_arrays = isinstance(answer, types.ForwardBackwardOutput | types.SampleResponse)
    media_type = (
        wire.choose_media_type(request.headers.get("accept", "")) if has_arrays else wire.JSON
    )
    return Response(wire.encode_result(answer, media_type), media_type=media_type)


async def dispatch(server: Server, operation: Operation, request: Request) -> Any:
    method, content = getattr(server, operation.operation_id), await request.body()
    if operation.body is None:
        return method(**request.path_params, **request.query_params)
    media_type = request.headers.get("content-type", "")
    plain = (
        content
        if media_type == wire.PROTOBUF
        else json.dumps(json.loads(content, object_hook=fill_in)).encode()
    )
    if operation.operation_id == "forward_backward":
        return server.submit(operation, wire.decode_forward_backward(plain, media_type), content)
    body = msgspec.json.decode(plain, type=operation.body)
    if operation.result is not None:
        return server.submit(operation, body, content)
    return await method(body) if asyncio.iscoroutinefunction(method) else method(body)


def fill_in(value: Any) -> Any:
    """An object as current clients write it: those of 2025 say null for what they do not say, and
    give no type of a text.
    """
    kept = {name: one for name, one in value.items() if one is not None}
    return {"type": "encoded_text", **kept} if "tokens" in kept else kept


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--hold", type=float, default=30.0, help="seconds that a poll waits for its result"
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=60.0,
        help="seconds that a request waits for the number below its own",
    )
    options = parser.parse_args()
    server = Server(options.hold, options.gap)
    routes = [
        Route(
            one.path.replace("checkpoint_id", "checkpoint_id:path"),
            partial(respond, server, one),
            methods=[one.method],
        )
        for one in OPERATIONS.values()
        if not one.optional
    ]
    uvicorn.run(Starlette(routes=routes), port=options.port, access_log=False)
