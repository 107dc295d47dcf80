"""``tinker checkpoint search`` and ``tinker checkpoint upload``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ask, Call


def test_search_combines_conditions(call: Call, ask: Ask, run: Any) -> None:
    """Metadata, kind and model must all hold, and the limit holds over pages."""
    found = ask(
        "checkpoint search --metadata step=1 --type training --base-model tinker/toy --limit 0"
    )
    assert run.training in [one["tinker_path"] for one in found["checkpoints"]]
    assert {one["checkpoint_type"] for one in found["checkpoints"]} == {"training"}
    assert ask("checkpoint search --metadata step=none")["checkpoints"] == []
    assert len(ask("checkpoint search --limit 2")["checkpoints"]) == 2
    assert "There are more" in call("checkpoint search --limit 2").stderr
    assert "There are more" not in call("checkpoint search --limit 0").stderr
    assert run.external in call("checkpoint search --type external --accessible").stdout.replace(
        "\n", ""
    )


def test_upload_says_which_checkpoint_it_made(
    call: Call, ask: Ask, run: Any, tmp_path: Path
) -> None:
    """What is downloaded can be uploaded again, and the answer is the path of that checkpoint."""
    folder = ask(f"checkpoint download {run.external} --output", str(tmp_path))["destination"]
    result = call(
        "-f json checkpoint upload", folder, "--base-model", "tinker/toy", "--rank", "4", code=0
    )
    path = json.loads(result.stdout)["checkpoint_path"]
    assert ask(f"checkpoint info {path}")["checkpoint_type"] == "training"


def test_an_uploaded_adapter_can_be_sampled_and_trained(
    call: Call, ask: Ask, run: Any, tmp_path: Path
) -> None:
    """A checkpoint without an optimizer state, as one that was uploaded, is started from with a new
    one, and says so.

    The list of runs has no failed start, and the adapter itself is uploaded.
    """
    folder = Path(ask(f"checkpoint download {run.external} --output", str(tmp_path))["destination"])
    (folder / "toy_optimizer.npz").unlink(missing_ok=True)
    path = ask("checkpoint upload", str(folder), "--base-model", "tinker/toy", "--rank", "4")[
        "checkpoint_path"
    ]
    made = call(f"-f json checkpoint create --from {path} --sampler")
    assert "has no optimizer state, so the optimizer begins from scratch" in made.stderr
    assert json.loads(made.stdout)["sampler_path"]
    (tmp_path / "one.jsonl").write_text('{"tokens": [1, 2, 3]}\n')
    start = path.split("/")[2]  # the ID, as `run list` shows it
    call("train", str(tmp_path / "one.jsonl"), "--from", start, "--max-steps", "1", code=0)
    assert "failed" not in (listed := call("run list --limit 5").stdout)
    assert [line.split()[-1] for line in listed.splitlines()[1:4]] == ["ended", "ended", "uploaded"]


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_an_adapter_is_an_error(call: Call, tmp_path: Path, name: str) -> None:
    """A folder that is not there, or contains no adapter, ends with 1 and one line that says so."""
    result = call("checkpoint upload", str(tmp_path / name))
    assert (result.exit_code, "Traceback" in result.output) == (1, False)
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize(
    ("config", "arguments", "words"),
    [
        (None, [], "or pass --base-model and --rank"),
        (None, ["--base-model", "tinker/toy"], "or pass --base-model and --rank"),
        (
            {"peft_type": "LORA", "r": 4, "lora_alpha": 8},
            [],
            "does not name the base model; pass --base-model",
        ),
        (
            {"peft_type": "LORA", "r": 4, "lora_alpha": 8},
            ["--rank", "8"],
            "--rank is 8, but r is 4 in adapter_config.json",
        ),
        (
            {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": "/there"},
            [],
            "pass its name: --base-model NAME",
        ),
    ],
)
def test_upload_errors_name_options(
    call: Call, tmp_path: Path, config: object, arguments: list[str], words: str
) -> None:
    """What the folder does not say is asked for by the options of the command."""
    header = json.dumps(
        {"q_proj.lora_A.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}
    ).encode()
    (tmp_path / "adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    if config:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    result = call("checkpoint upload", str(tmp_path), *arguments)
    assert (result.exit_code, result.stderr.rstrip().endswith(words)) == (1, True), result.stderr
