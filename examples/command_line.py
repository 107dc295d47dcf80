"""The command line from a script: train on a file, look at the run, sample from its checkpoint,
delete it.

python examples/command_line.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tinker.local import Settings, running_server
from tinker.local.engines.toy import ToyEngine

EXAMPLES = [{"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(8)]


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Settings(data_dir=Path(folder) / "data"), ToyEngine()) as url,
    ):
        data = Path(folder) / "examples.jsonl"
        data.write_text("".join(json.dumps(example) + "\n" for example in EXAMPLES))

        def tinker(*arguments: str) -> dict[str, object]:
            print("$ tinker", " ".join(argument.replace(folder, "~") for argument in arguments))
            command = [
                sys.executable,
                "-m",
                "tinker.cli",
                "--base-url",
                url,
                "-f",
                "json",
                *arguments,
            ]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  (our own words)
            result = done.stdout.splitlines()[-1] if arguments[0] == "train" else done.stdout
            return json.loads(result) if result.startswith("{") else {}

        trained = tinker(
            "train",
            str(data),
            "--rank",
            "4",
            "--batch-size",
            "4",
            "--epochs",
            "2",
            "--learning-rate",
            "0.01",
        )
        print(f"  {trained['steps']} steps")
        run, sampler = str(trained["training_run_id"]), str(trained["sampler_path"])
        listed = tinker("checkpoint", "list", "--run-id", run)["checkpoints"]
        print("  " + ", ".join(one["checkpoint_id"] for one in listed))
        prompts = Path(folder) / "prompts.json"
        prompts.write_text('["1 + 1 =", "2 + 1 ="]')
        sampled = tinker(
            "sample",
            "--model",
            sampler,
            "--prompt-file",
            str(prompts),
            "--max-tokens",
            "3",
            "--temperature",
            "0",
        )
        print("  " + ", ".join(repr(one["text"]) for one in sampled["samples"]))
        tinker("checkpoint", "delete", "--yes", *(one["tinker_path"] for one in listed))
        left = tinker("checkpoint", "list", "--run-id", run)["checkpoints"]
        print(f"  {len(left)} left")
        assert left == []


if __name__ == "__main__":
    main()
