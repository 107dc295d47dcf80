"""polygramme-rlcli: its commands that ask a server, in the process and, where it starts
`python -m tinker.cli`, in another.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from reporting import TOKENIZER_FOLDER, report, train
from rlcli.cli import main_cli

URL = os.environ["TINKER_BASE_URL"]
run = train()


def invoke(*arguments: str) -> str:
    """Run a command of rlcli, which must succeed."""
    result = CliRunner().invoke(main_cli, list(arguments))
    assert result.exit_code == 0, f"{result.output}{result.exception!r}"
    return result.output


def pass_through(*arguments: str) -> str:
    """Run a command that rlcli hands to the client's own command line."""
    command = [sys.executable, "-c", "from rlcli.cli import main_cli; main_cli()", *arguments]
    wide = {**os.environ, "COLUMNS": "250"}  # tables are not cut
    result = subprocess.run(command, env=wide, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def version() -> None:
    assert "tinker 0." in invoke("version")


def sample_of_a_base_model() -> None:
    assert invoke(
        "sample",
        "--prompt",
        "hi",
        "--model",
        TOKENIZER_FOLDER,
        "--base-url",
        URL,
        "--max-tokens",
        "4",
    )


def sample_of_a_checkpoint() -> None:
    os.environ["RLCLI_TOKENIZER"] = TOKENIZER_FOLDER
    assert invoke(
        "sample",
        "--prompt",
        "hi",
        "--checkpoint",
        run.weights,
        "--base-url",
        URL,
        "--max-tokens",
        "4",
    )


def supervised_training() -> None:
    chat = {
        "messages": [{"role": "user", "content": "Say hi."}, {"role": "assistant", "content": "hi"}]
    }
    Path("chats.jsonl").write_text((json.dumps(chat) + "\n") * 4)
    invoke(
        "train", "sl", "--dataset", "chats.jsonl", "--model", TOKENIZER_FOLDER, "--base-url", URL, "--renderer", "role_colon",
        "--batch-size", "2", "--max-length", "64", "--lora-rank", "8", "--save-every", "1", "--log-path", "run",
    )  # fmt: skip
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if "train_mean_nll" in row]) == 2


def checkpoint_list() -> None:
    listed = pass_through("checkpoint", "list", "--base-url", URL)
    assert run.id in listed, listed


def run_list() -> None:
    assert run.id in pass_through("run", "list", "--base-url", URL)


def run_info() -> None:
    assert run.id in pass_through("run", "info", run.id, "--base-url", URL)


if __name__ == "__main__":
    report(
        [
            version,
            sample_of_a_base_model,
            sample_of_a_checkpoint,
            supervised_training,
            checkpoint_list,
            run_list,
            run_info,
        ]
    )
