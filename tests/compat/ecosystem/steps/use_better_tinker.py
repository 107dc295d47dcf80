"""better-tinker: every endpoint of its bridge, which its terminal program asks; the chat on an
address of ours.
"""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

from better_tinker.bridge import server
from fastapi.testclient import TestClient
from reporting import MODEL, register_tokenizer, report, train

bridge = TestClient(server.app, headers={"authorization": "Bearer tml-ecosystem"})
run = train()
answers: list[dict[str, Any]] = []


def ask(method: str, path: str, status: int = 200, **body: Any) -> Any:
    """Ask the bridge, which must answer with this status."""
    answer = bridge.request(method, path, json=body or None)
    assert answer.status_code == status, f"{answer.status_code}: {answer.text}"
    return answer.json()


def health() -> None:
    found = ask("GET", "/health")
    assert found["tinker_sdk"]
    assert found["client_ready"]


def training_runs() -> None:
    found = ask("GET", "/training_runs?limit=5")
    assert run.id in [one["training_run_id"] for one in found["training_runs"]]


def training_run() -> None:
    found = ask("GET", f"/training_runs/{run.id}")
    assert (found["base_model"], found["lora_config"]) == (MODEL, {"rank": 8})


def training_run_that_is_not_there() -> None:
    ask("GET", "/training_runs/no-such-run", 404)


def checkpoints_of_a_run() -> None:
    found = ask("GET", f"/training_runs/{run.id}/checkpoints")["checkpoints"]
    assert {one["tinker_path"] for one in found} == {run.state, run.weights}


def checkpoints_of_the_user() -> None:
    found = ask("GET", "/users/checkpoints")["checkpoints"]
    assert {(one["training_run_id"], one["tinker_path"]) for one in found} >= {
        (run.id, run.state),
        (run.id, run.weights),
    }


def usage() -> None:
    assert ask("GET", "/users/usage")["total_checkpoints"] >= 2


def publish() -> None:
    assert ask("POST", "/checkpoints/publish", tinker_path=run.weights)["success"]


def unpublish() -> None:
    assert ask("POST", "/checkpoints/unpublish", tinker_path=run.weights)["success"]


async def archive() -> None:
    """Asked of the function: a checkpoint's id has a slash, which the bridge cannot take."""
    _, rest = server.client_manager.get_client("tml-ecosystem")
    found = await server.get_checkpoint_archive_url(run.id, "sampler_weights/first", rest)
    assert found["url"].startswith("http")


def chat() -> None:
    """The cookbook renders the prompt; completions come from an address of ours."""
    register_tokenizer()
    server.get_recommended_renderer_name = lambda model: "role_colon"
    server.TINKER_OAI_BASE_URL = f"http://127.0.0.1:{serve_completions()}"
    said = ask(
        "POST",
        "/chat",
        model_path=run.weights,
        base_model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
    )
    assert said["content"] == "hello"
    assert answers[-1]["model"] == run.weights
    assert "hi" in answers[-1]["prompt"]


def serve_completions() -> int:
    """Answer completions on a port of this machine, as the hosted service does."""

    class Completions(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answers.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = {"id": "1", "object": "text_completion", "created": 1, "model": "", "choices": [
                {"index": 0, "text": " hello", "finish_reason": "stop", "logprobs": None}]}  # fmt: skip
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    listener = http.server.HTTPServer(("127.0.0.1", 0), Completions)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    return listener.server_port


def delete_by_path() -> None:
    assert ask("POST", "/checkpoints/delete", tinker_path=run.state)["success"]
    assert [
        one["tinker_path"]
        for one in ask("GET", f"/training_runs/{run.id}/checkpoints")["checkpoints"]
    ] == [run.weights]


def delete_what_is_not_there() -> None:
    ask("POST", "/checkpoints/delete", 404, tinker_path=f"tinker://{run.id}/weights/nothing")


if __name__ == "__main__":
    report([
        health, training_runs, training_run, training_run_that_is_not_there, checkpoints_of_a_run, checkpoints_of_the_user, usage,
        publish, unpublish, archive, chat, delete_by_path, delete_what_is_not_there,
    ])  # fmt: skip
