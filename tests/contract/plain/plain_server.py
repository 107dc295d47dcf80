"""A server that shares no code with this package: a second implementation for the conformance kit,
over plain HTTP and JSON.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import json
import re
import sys
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
from plain_model import CONTEXT, NAME, VOCABULARY, Adapter

ADAM = {
    "learning_rate": 1e-4,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-12,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
}
RUN, BODY = "/training_runs/([^/]+)", dict[str, Any]
OPERATIONS = (
    ("GET", "/get_server_capabilities", "get_server_capabilities"),
    ("GET", "/training_runs", "list_training_runs"),
    ("GET", RUN, "get_training_run"),
    ("GET", f"{RUN}/checkpoints", "list_checkpoints"),
    ("DELETE", f"{RUN}/checkpoints/([^/]+/[^/]+)", "delete_checkpoint"),
    *(
        ("POST", f"/{name}", name)
        for name in ("create_session", "create_model", "get_info", "forward_backward", "forward")
    ),
    *(
        ("POST", f"/{name}", name)
        for name in ("optim_step", "save_weights", "save_weights_for_sampler", "load_weights")
    ),
    *(
        ("POST", f"/{name}", name)
        for name in ("weights_info", "create_sampling_session", "asample", "retrieve_future")
    ),
)


class Refusal(Exception):
    """The response to a refused request: a status of 400 or more, and the reason."""


def need(body: Any, kind: type, *names: str) -> Any:
    """Return the field of that name, and in it that of the next. A misfit is 422."""
    for index, name in enumerate(names):
        if not isinstance(body, dict) or name not in body:
            raise Refusal(
                422,
                [
                    {
                        "loc": ["body", *names[: index + 1]],
                        "msg": "this field is required",
                        "type": "missing",
                    }
                ],
            )
        body = body[name]
    if not isinstance(body, (int, float) if kind is float else kind) or isinstance(body, bool):
        raise Refusal(
            422,
            [
                {
                    "loc": ["body", *names],
                    "msg": f"a value of type {kind.__name__} is expected",
                    "type": "type",
                }
            ],
        )
    return body


def read_tokens(model_input: Any) -> list[int]:
    """Return the tokens of all chunks; clients of 2025 send chunks without a `type`."""
    tokens = [
        token
        for chunk in need(model_input, list, "chunks")
        for token in need(chunk, list, "tokens")
    ]
    if (
        not tokens
        or len(tokens) > CONTEXT
        or not all(isinstance(one, int) and 0 <= one < VOCABULARY for one in tokens)
    ):
        raise Refusal(
            422,
            [
                {
                    "loc": ["body", "chunks"],
                    "msg": f"1 to {CONTEXT} tokens below {VOCABULARY}",
                    "type": "value",
                }
            ],
        )
    return tokens


def read_row(inputs: BODY, name: str, tokens: list[int]) -> np.ndarray:
    """Return a dense input with one number for each token; `weights` are 1 by default."""
    if name == "weights" and name not in inputs:
        return np.ones(len(tokens))
    row = np.array(need(inputs, list, name, "data"), float)
    if inputs[name].get("sparse_crow_indices") or row.shape != (len(tokens),):
        raise Refusal(400, f"{name} has one number for each token, and is not sparse")
    return row


def now(seconds: float = 0) -> str:
    return (datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)).isoformat()


class Model:
    """A training run: its adapter, and the requests that wait for the number below theirs."""

    def __init__(self, rank: int, seed: int | None) -> None:
        self.rank, self.adapter, self.inflight, self.used = (
            rank,
            Adapter(max(rank, 1), seed),
            Adapter(1, 0),
            now(),
        )
        self.next_number, self.waiting = 1, dict[int, tuple[str, Callable[[], BODY]]]()


class Server:
    """The server's state, and one method for each operation."""

    def __init__(self, hold_seconds: float, gap_seconds: float) -> None:
        self.hold_seconds, self.changed, self.sessions = (
            hold_seconds,
            threading.Condition(),
            set[str](),
        )
        self.gap_seconds = gap_seconds
        self.models, self.samplers = dict[str, Model](), dict[str, Adapter]()
        self.checkpoints = dict[str, tuple[Adapter, BODY, Model]]()
        # whose request of which number: its body and its future
        self.submitted = dict[tuple[str, Any], tuple[BODY, str]]()
        # the result of each future, None while there is none
        self.results = dict[str, BODY | None]()

    # A number is used once: the same request again is the same future, and another one is 409.

    def submit(
        self,
        owner: str,
        number: int | None,
        body: BODY,
        work: Callable[[], BODY],
        model: Model | None = None,
    ) -> BODY:
        known, future = self.submitted.get((owner, number), (body, uuid.uuid4().hex))
        if known != body:
            raise Refusal(409, f"number {number} of {owner} is another request")
        if future not in self.results:
            self.results[future] = None
            self.submitted[owner, future if number is None else number] = body, future
            if model is None or number is None:
                self.run(future, work)
            else:
                model.waiting[number] = future, work
                self.advance(model)
        return {"request_id": future}

    def advance(self, model: Model, given_up: int = 0) -> None:
        if model.waiting and (
            model.next_number == given_up or min(model.waiting) < model.next_number
        ):
            model.next_number = min(model.waiting)
        while model.next_number in model.waiting:
            self.run(*model.waiting.pop(model.next_number))
            model.next_number += 1
        if model.waiting:
            timer = threading.Timer(self.gap_seconds, self.give_up, (model, model.next_number))
            timer.daemon = True
            timer.start()

    def give_up(self, model: Model, number: int) -> None:
        with self.changed:
            self.advance(model, number)

    def run(self, future: str, work: Callable[[], BODY]) -> None:
        try:
            self.results[future] = work()
        except Refusal as refusal:
            # it was accepted, so the result says that it failed, and whose fault it is
            self.results[future] = {"error": str(refusal.args[1]), "category": "user"}
        self.changed.notify_all()

    def retrieve_future(self, body: BODY) -> BODY:
        future = need(body, str, "request_id")
        self.find("request", future, self.results)
        if self.changed.wait_for(lambda: self.results[future] is not None, self.hold_seconds):
            return self.results[future] or {}
        return {"type": "try_again", "request_id": future, "queue_state": "active"}

    def find(self, kind: str, name: str, known: Any) -> Any:
        if name not in known:
            raise Refusal(404, f"there is no {kind} {name}")
        return known[name] if isinstance(known, dict) else name

    # Sessions and models.

    def get_server_capabilities(self) -> BODY:
        return {
            "supported_models": [
                {
                    "model_name": NAME,
                    "max_context_length": CONTEXT,
                    "trainable": True,
                    "sampleable": True,
                }
            ]
        }

    def create_session(self, body: BODY) -> BODY:
        need(body, list, "tags"), need(body, str, "sdk_version")
        self.sessions.add(session := str(uuid.uuid4()))
        return {"session_id": session, "type": "create_session"}

    def create_model(self, body: BODY) -> BODY:
        session, number = (
            self.find("session", need(body, str, "session_id"), self.sessions),
            need(body, int, "model_seq_id"),
        )
        if (
            need(body, str, "base_model") != NAME
            or (body.get("optimizer_config") or {}).get("type", "adamw") != "adamw"
        ):
            raise Refusal(400, f"this server trains {NAME} with adamw")
        lora, model_id = body.get("lora_config") or {"rank": 32}, f"{session}:train:{number}"
        model = Model(need(lora, int, "rank"), lora.get("seed"))

        def work() -> BODY:
            self.models[model_id] = model
            return {"model_id": model_id, "type": "create_model"}

        return self.submit(f"models of {session}", number, body, work) | {"model_id": model_id}

    def get_info(self, body: BODY) -> BODY:
        model = self.find("model", need(body, str, "model_id"), self.models)
        info = {
            "model_name": NAME,
            "is_lora": True,
            "lora_rank": model.rank,
            "model_data": {"model_name": NAME},
        }
        return {"model_id": body["model_id"], **info, "type": "get_info"}

    def get_training_run(self, run: str) -> BODY:
        model = self.find("run", run, self.models)
        about = {
            "base_model": NAME,
            "model_owner": "user",
            "is_lora": True,
            "lora_rank": model.rank,
        }
        return {"training_run_id": run, **about, "last_request_time": model.used}

    def list_training_runs(self, limit: int = 20, offset: int = 0) -> BODY:
        runs = sorted(self.models, key=lambda run: self.models[run].used, reverse=True)
        cursor = {"offset": offset, "limit": limit, "total_count": len(runs)}
        return {
            "training_runs": [self.get_training_run(run) for run in runs[offset : offset + limit]],
            "cursor": cursor,
        }

    # Training: the requests of a model are numbered from 1, and carried out in that order.

    def train(self, body: BODY, work: Callable[[Model], BODY]) -> BODY:
        model = self.find("model", need(body, str, "model_id"), self.models)
        model.used = now()
        return self.submit(body["model_id"], body.get("seq_id"), body, lambda: work(model), model)

    def forward(self, body: BODY) -> BODY:
        return self.forward_backward(body, "forward_input")

    def forward_backward(self, body: BODY, field: str = "forward_backward_input") -> BODY:
        data = [
            (read_tokens(one.get("model_input")), need(one, dict, "loss_fn_inputs"))
            for one in need(body, list, field, "data")
        ]
        loss_fn = need(body, str, field, "loss_fn")

        def work(model: Model) -> BODY:
            outputs, loss = [], 0.0
            if loss_fn != "cross_entropy":
                raise Refusal(400, f"this server computes cross_entropy, not {loss_fn}")
            for tokens, inputs in data:
                targets, weights = (
                    read_row(inputs, "target_tokens", tokens).astype(int) % VOCABULARY,
                    read_row(inputs, "weights", tokens),
                )
                logprobs = model.adapter.cross_entropy(
                    tokens, targets, weights, backward=field != "forward_input"
                )
                outputs.append(
                    {
                        "logprobs": {
                            "data": logprobs.tolist(),
                            "dtype": "float32",
                            "shape": [len(tokens)],
                        }
                    }
                )
                loss -= float(logprobs @ weights)
            return {
                "loss_fn_output_type": "ArrayRecord",
                "loss_fn_outputs": outputs,
                "metrics": {"loss:sum": loss},
            }

        return self.train(body, work)

    def optim_step(self, body: BODY) -> BODY:
        given = {**ADAM, **(body.get("adam_params") or {})}
        params = {name: float(need(given, float, name)) for name in ADAM}

        def work(model: Model) -> BODY:
            model.adapter.step(params)
            return {"metrics": {}, "type": "optim_step"}

        return self.train(body, work)

    # Checkpoints: tinker://<run>/weights/<name> to train on, tinker://<run>/sampler_weights/<name>
    # to sample from.

    def save_weights(self, body: BODY, kind: str = "weights") -> BODY:
        path = f"tinker://{need(body, str, 'model_id')}/{kind}/{body.get('path') or body.get('seq_id')}"
        about = {
            "checkpoint_id": path.split("/", 3)[3],
            "checkpoint_type": "training" if kind == "weights" else "sampler",
        }
        about |= {
            "tinker_path": path,
            "time": now(),
            "user_metadata": body.get("user_metadata"),
            "public": False,
        }
        # a real server keeps to it
        about["expires_at"] = now(body["ttl_seconds"]) if body.get("ttl_seconds") else None

        def work(model: Model) -> BODY:
            self.checkpoints[path] = copy.deepcopy(model.adapter), about, model
            return {
                "path": path,
                "type": "save_weights" if kind == "weights" else "save_weights_for_sampler",
            }

        if (
            path in self.checkpoints
            and not body.get("overwrite")
            and (body["model_id"], body.get("seq_id")) not in self.submitted
        ):
            # its number is used, so that the next one need not wait for it
            self.train(body, lambda _: {})
            raise Refusal(409, f"there is a checkpoint {path}; `overwrite` replaces it")
        return self.train(body, work)

    def save_weights_for_sampler(self, body: BODY) -> BODY:
        def work(model: Model) -> BODY:
            sampler = uuid.uuid4().hex
            self.samplers[sampler] = (
                model.inflight if body.get("kind") == "inflight" else Adapter(1, 0)
            )
            self.samplers[sampler].weights = copy.deepcopy(model.adapter.weights)
            return {
                "path": None,
                "sampling_session_id": sampler,
                "type": "save_weights_for_sampler",
            }

        return (
            self.save_weights(body, "sampler_weights")
            if body.get("path")
            else self.train(body, work)
        )

    def load_weights(self, body: BODY) -> BODY:
        path = need(body, str, "path")

        def work(model: Model) -> BODY:
            saved = copy.deepcopy(self.find("checkpoint", path, self.checkpoints)[0])
            model.adapter.weights = saved.weights
            if body.get("optimizer"):
                model.adapter.moments, model.adapter.steps = saved.moments, saved.steps
            return {"path": path, "model_id": body["model_id"], "type": "load_weights"}

        return self.train(body, work)

    def weights_info(self, body: BODY) -> BODY:
        _, _, model = self.find("checkpoint", need(body, str, "tinker_path"), self.checkpoints)
        return {"base_model": NAME, "is_lora": True, "lora_rank": model.rank}

    def list_checkpoints(self, run: str) -> BODY:
        model = self.find("run", run, self.models)
        return {
            "checkpoints": [
                about for _, about, owner in self.checkpoints.values() if owner is model
            ],
            "cursor": None,
        }

    def delete_checkpoint(self, run: str, checkpoint: str) -> None:
        path = f"tinker://{run}/{checkpoint}"
        self.find("checkpoint", path, self.checkpoints)
        del self.checkpoints[path]

    # Sampling: the requests of a sampling session are numbered too, and carried out in any order.

    def create_sampling_session(self, body: BODY) -> BODY:
        session = self.find("session", need(body, str, "session_id"), self.sessions)
        sampler = f"{session}:sample:{need(body, int, 'sampling_session_seq_id')}"
        self.samplers.setdefault(sampler, self.adapter_of(body))
        return {"sampling_session_id": sampler, "type": "create_sampling_session"}

    def adapter_of(self, body: BODY) -> Adapter:
        if (body.get("base_model") is None) == (body.get("model_path") is None):
            raise Refusal(400, "exactly one of base_model and model_path is needed")
        return (
            self.find("checkpoint", body["model_path"], self.checkpoints)[0]
            if body.get("model_path")
            else Adapter(1, 0)
        )

    def asample(self, body: BODY) -> BODY:
        tokens, params, sampler = (
            read_tokens(need(body, dict, "prompt")),
            need(body, dict, "sampling_params"),
            body.get("sampling_session_id"),
        )
        adapter = (
            self.adapter_of(body)
            if sampler is None
            else self.find("sampling session", sampler, self.samplers)
        )
        unknown = [
            name
            for name in ("target_prompt_logprobs", "prompt_alt_tokens_k", "prompt_logprobs_last_n")
            if body.get(name)
        ]
        if unknown or not all(isinstance(token, int) for token in params.get("stop") or ()):
            raise Refusal(400, f"this server has no {', '.join(unknown) or 'texts to stop at'}")
        count = body.get("num_samples") or 1

        def work() -> BODY:
            sequences = [self.sample(adapter, tokens[-1], body, index) for index in range(count)]
            rows, scored = adapter.logprobs(tokens[:-1]), {}
            if body.get("prompt_logprobs"):
                scored["prompt_logprobs"] = [
                    None,
                    *(float(row[token]) for row, token in zip(rows, tokens[1:])),
                ]
            if body.get("topk_prompt_logprobs"):
                scored["topk_prompt_logprobs"] = [
                    None,
                    *likeliest(rows, body["topk_prompt_logprobs"]),
                ]
            return {"sequences": sequences, **scored, "type": "sample"}

        future = self.submit(
            f"samples of {sampler}", body.get("seq_id") if sampler else None, body, work
        )
        return future | {
            "sample_sequence_ids": [f"{future['request_id']}:{index}" for index in range(count)]
        }

    def sample(self, adapter: Adapter, token: int, body: BODY, index: int) -> BODY:
        params, tokens, rows = body["sampling_params"], [token], []
        generator = np.random.default_rng(
            None if params.get("seed") is None else [params["seed"], index]
        )
        stop, most = params.get("stop") or (), params.get("max_tokens") or CONTEXT
        while len(rows) < most and (not rows or tokens[-1] not in stop):
            rows.append(adapter.logprobs(tokens[-1:])[0])
            tokens.append(adapter.draw(tokens[-1], params, generator))
        sequence = {
            "tokens": tokens[1:],
            "logprobs": [float(row[token]) for row, token in zip(rows, tokens[1:])],
        }
        sequence["topk_logprobs"] = (
            likeliest(rows, body["topk_sample_logprobs"])
            if body.get("topk_sample_logprobs")
            else None
        )
        return {**sequence, "stop_reason": "stop" if tokens[-1] in stop else "length"}


def likeliest(rows: Any, k: int) -> list[list[tuple[int, float]]]:
    """For each row of logprobs its best k tokens, best first."""
    return [[(int(token), float(row[token])) for token in np.argsort(-row)[:k]] for row in rows]


class Handler(BaseHTTPRequestHandler):
    """One request over HTTP: its address names a method of `Server`."""

    protocol_version, wbufsize = "HTTP/1.1", -1  # head and body of an answer leave together
    state: Server

    def answer(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            answer = self.dispatch(content)
            status = 204 if answer is None else 200
        except Refusal as refusal:
            status, answer = refusal.args[0], {"detail": refusal.args[1]}
        text = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def dispatch(self, content: bytes) -> Any:
        address = urlsplit(self.path)
        path = unquote(address.path).removeprefix("/api/v1")
        for method, pattern, name in OPERATIONS:
            found = re.fullmatch(pattern, path)
            if found and method == self.command:
                query = {
                    key: int(value) for key, value in parse_qsl(address.query) if value.isdecimal()
                }
                arguments = (
                    [read_body(self.headers.get_content_type(), content)]
                    if method == "POST"
                    else found.groups()
                )
                with self.state.changed:
                    return getattr(self.state, name)(*arguments, **query)
        raise Refusal(404, "Not Found")

    def log_message(self, *_: object) -> None:
        pass


def read_body(media_type: str, content: bytes) -> BODY:
    if media_type != "application/json":
        raise Refusal(415, "this server reads JSON")
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise Refusal(422, [{"loc": ["body"], "msg": "a JSON object is expected", "type": "type"}])
    return body


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--hold", type=float, required=True, help="seconds that a poll waits for its result"
    )
    parser.add_argument(
        "--gap",
        type=float,
        required=True,
        help="seconds that a request waits for the number below its own",
    )
    options = parser.parse_args()
    handler = type("BoundHandler", (Handler,), {"state": Server(options.hold, options.gap)})
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        sys.stderr.write(f"running on http://127.0.0.1:{server.server_port}\n")
        sys.stderr.flush()
        server.serve_forever()
