"""The endpoints of vLLM 0.32 that the sampler uses, over the toy engine; as an object in a thread,
and as a program.

``python fake_vllm.py serve MODEL --port PORT ...`` passes for ``vllm``. With ``FAKE_VLLM_DIES`` in
the environment it kills itself when it is first asked for samples, with ``FAKE_VLLM_BREAKS`` in the
middle of the first stream. The value of both is a file, which exists from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tinker.local.engines.protocol import SampleJob, SampleResult
from tinker.local.engines.toy import ToyEngine

MAX_RANK = 32
GENERATE, LOAD = "/inference/v1/generate", "/v1/load_lora_adapter"


class FakeVLLM:
    """One vLLM. ``asked`` has the body of every request for samples that it answers itself, when
    ``is_open`` is set.

    Each path of ``faults`` gets these answers first, one for each request.
    """

    def __init__(
        self,
        model: str = "tinker/toy",
        *,
        root: str = "",
        key: str | None = None,
        context: int = 4096,
    ) -> None:
        self.engine = ToyEngine(vocabulary=512)
        self.model, self.root, self.key, self.context = model, root or model, key, context
        self.faults: dict[str, list[Response]] = {}
        self.asked: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.adapters: dict[str, Any] = {}
        self.is_open, self.has_asked, self.has_left = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.is_open.set()

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/health", self._health),
                self._route("/v1/models", self._models),
                self._route(LOAD, self._load, "POST"),
                self._route("/v1/unload_lora_adapter", self._unload, "POST"),
                self._route(GENERATE, self._generate, "POST"),
            ]
        )

    def _route(
        self, path: str, endpoint: Callable[[Request], Awaitable[Response]], method: str = "GET"
    ) -> Route:
        async def answer(request: Request) -> Response:
            faults = self.faults.get(path)
            return faults.pop(0) if faults else await endpoint(request)

        return Route(path, answer, methods=[method])

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _models(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return refuse(401, "Unauthorized")
        base = {"id": self.model, "root": self.root, "parent": None, "max_model_len": self.context}
        adapters = [{"id": name, "root": "", "parent": self.model} for name in self.adapters]
        return JSONResponse({"object": "list", "data": [base, *adapters]})

    async def _load(self, request: Request) -> Response:
        body = await request.json()
        name, folder = body["lora_name"], Path(body["lora_path"])
        if name in self.adapters:
            return refuse(400, f"The lora adapter '{name}' has already been loaded.")
        await self._wait(request)
        spec = self.engine.load_snapshot(folder).spec
        if spec.rank > MAX_RANK:
            return refuse(500, f"LoRA rank {spec.rank} is greater than max_lora_rank {MAX_RANK}.")
        self.adapters[name] = self.engine.load_snapshot(folder)
        self.loaded.append(name)
        return Response("Success")

    async def _unload(self, request: Request) -> Response:
        found = self.adapters.pop((await request.json())["lora_name"], None)
        return (
            Response("Success")
            if found is not None
            else refuse(404, "The lora adapter cannot be found.")
        )

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        die_once("FAKE_VLLM_DIES")
        if body["model"] not in {self.model, *self.adapters}:
            return refuse(404, f"The model `{body['model']}` does not exist.")
        if body["sampling_params"]["temperature"] > 2:
            return refuse(400, "temperature must be in [0, 2]. (parameter=temperature)")
        if not await self._wait(request):
            return Response()
        result = self._sample(body)
        return (
            StreamingResponse(stream(result))
            if body.get("stream")
            else JSONResponse(write(result, body))
        )

    async def _wait(self, request: Request) -> bool:
        """Wait until it is open; return whether the client has waited, too."""
        self.has_asked.set()
        while not self.is_open.is_set():
            await asyncio.sleep(0.001)
            if await request.is_disconnected():
                self.has_left.set()
                return False
        return True

    def _sample(self, body: dict[str, Any]) -> SampleResult:
        params = body["sampling_params"]
        stop = [*params["stop"], *params["stop_token_ids"]] if params["ignore_eos"] else None
        job = SampleJob(
            tokens=np.array(body["token_ids"], np.int32),
            weights=self.adapters.get(body["model"]),
            num_samples=params["n"],
            max_tokens=params["max_tokens"],
            min_tokens=params["min_tokens"],
            temperature=params["temperature"],
            top_k=params["top_k"],
            top_p=params["top_p"],
            min_p=params["min_p"],
            presence_penalty=params["presence_penalty"],
            frequency_penalty=params["frequency_penalty"],
            repetition_penalty=params["repetition_penalty"],
            seed=params["seed"],
            stop=stop,
            topk_sample_logprobs=params["logprobs"],
        )
        return self.engine.sample([job])[0]


def die_once(variable: str) -> None:
    """Kill this process if the variable names a file that does not exist yet."""
    if (mark := os.environ.get(variable)) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), 9)


def refuse(status: int, message: str) -> Response:
    return JSONResponse(
        {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}},
        status,
    )


def likely(token: int, logprob: float) -> dict[str, Any]:
    return {"token_id": int(token), "logprob": float(logprob)}


def write(result: SampleResult, body: dict[str, Any]) -> dict[str, Any]:
    """Write an answer as vLLM does: the likeliest tokens begin with the drawn one, and are cut to
    the number asked for.
    """
    choices, shown = [], max(body["sampling_params"]["logprobs"], 1)
    for index, drawn in enumerate(result.sequences):
        content = []
        for place, (token, logprob) in enumerate(zip(drawn.tokens, drawn.logprobs, strict=True)):
            rows = (
                []
                if drawn.topk is None
                else list(zip(drawn.topk[0][place], drawn.topk[1][place], strict=True))
            )
            others = [likely(*cell) for cell in rows if cell[0] != token]
            content.append(
                {
                    **likely(token, logprob),
                    "top_logprobs": [likely(token, logprob), *others][:shown],
                }
            )
        choices.append(
            {
                "index": index,
                "logprobs": {"content": content},
                "finish_reason": drawn.stop_reason,
                "token_ids": [],
            }
        )
    return {"choices": choices}


async def stream(result: SampleResult) -> AsyncIterator[str]:
    """Stream two tokens at a time."""
    for index, drawn in enumerate(result.sequences):
        tokens = [likely(*one) for one in zip(drawn.tokens, drawn.logprobs, strict=True)]
        for start in range(0, len(tokens), 2):
            reason = drawn.stop_reason if start + 2 >= len(tokens) else None
            yield event(index, tokens[start : start + 2], reason)
            await asyncio.sleep(0)
            die_once("FAKE_VLLM_BREAKS")
    yield "data: [DONE]\n\n"


def event(index: int, tokens: list[dict[str, Any]], reason: str | None) -> str:
    choice = {"index": index, "logprobs": {"content": tokens}, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


@contextmanager
def running(fake: FakeVLLM) -> Iterator[str]:
    """Serve it on a free port, in a thread; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(fake.app, log_level="error", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def main(arguments: list[str]) -> None:
    """Serve as ``vllm serve`` does, the model under its served name."""
    if "--fail" in arguments:
        sys.exit("It starts.\n" * 1000 + "ValueError: there is no such option")
    options = dict(itertools.pairwise(arguments))
    fake = FakeVLLM(options["--served-model-name"], key=os.environ["VLLM_API_KEY"])
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.run(
            fake.app,
            host=options["--host"],
            port=int(options["--port"]),
            log_level="error",
            ws="none",
        )


if __name__ == "__main__":
    main(sys.argv[1:])
