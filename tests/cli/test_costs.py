"""``tinker train --estimate`` and ``tinker run usage``: tokens and costs, before and after."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ask, Call
from support.tolerances import FLOAT64, near

import tinker

PRICES = '["tinker/toy"]\ntrain = 3\nprefill = 1\nsample = 2\n'


@pytest.fixture
def examples(tmp_path: Path) -> str:
    """Return a file of five examples with 5 to 9 tokens, of which each trains one less."""
    pytest.importorskip("transformers")
    file = tmp_path / "examples.jsonl"
    file.write_text(
        "".join(json.dumps({"tokens": list(range(1, 6 + extra))}) + "\n" for extra in range(5))
    )
    return str(file)


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "prices.toml"
    file.write_text(PRICES)
    return str(file)


TRAIN = ("-m", "tinker/toy", "--rank", "4", "--batch-size", "2", "--epochs", "2")


def test_an_estimate_equals_the_usage(ask: Ask, examples: str, prices: str) -> None:
    """Tokens and cost before a run are those of the run, and an estimate makes no run."""
    before = ask("run list --limit 0")["runs"]
    estimate = ask(f"train {examples}", *TRAIN, "--estimate", "--prices", prices)
    assert estimate["tokens"] == {
        "trained": 2 * (4 + 5 + 6 + 7 + 8),
        "prefilled": 0,
        "cached": 0,
        "sampled": 0,
    }
    assert estimate["cost"] == near(60 * 3 / 1e6, 3, unit=FLOAT64)
    assert estimate["steps"] == 6
    assert ask("run list --limit 0")["runs"] == before
    done = ask(f"train {examples}", *TRAIN, "--prices", prices)
    assert (done["tokens"], done["cost"]) == (estimate["tokens"], estimate["cost"])
    bill = ask("run usage", done["training_run_id"], "--prices", prices)
    assert bill["tokens"] == {"tinker/toy": estimate["tokens"]}
    assert bill["cost"] == estimate["cost"]


def test_prices_come_from_the_environment(
    call: Call,
    refuse: Any,
    server: str,
    examples: str,
    prices: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """TINKER_PRICES names the list; a list without the model is refused."""
    shown = call(f"train {examples}", *TRAIN, "--estimate").stdout
    assert "Trained (tokens)  60" in shown
    assert "Cost" not in shown
    monkeypatch.setenv("TINKER_PRICES", prices)
    assert "0.00018" in call(f"train {examples}", *TRAIN, "--estimate").stdout
    other = tmp_path / "other.json"
    other.write_text('{"another": {"train": 1, "prefill": 1, "sample": 1}}')
    for arguments in (("--estimate",), ()):
        options = [*TRAIN, *arguments, "--prices", str(other)]
        refuse(1, "no price for tinker/toy", f"train {examples}", *options, base_url=server)
    other.write_text("[]")
    assert (
        "is not a price list"
        in call(f"train {examples}", *TRAIN, "--estimate", "--prices", str(other)).stderr
    )


def test_the_result_of_one_step(call: Call, examples: str, prices: str) -> None:
    """One step has one loss; a server of this process shows a cost only with a price list."""
    shown = call(f"train {examples} -m tinker/toy --rank 4 --batch-size 8").stdout
    assert re.search(r"^Loss +[0-9.]+$", shown, re.M)
    local = call(f"train {examples}", *TRAIN, "--estimate", base_url="local://toy").stdout
    assert "Trained (tokens)  60" in local
    assert "Cost" not in local
    assert (
        "Cost"
        in call(
            f"train {examples}", *TRAIN, "--estimate", "--prices", prices, base_url="local://toy"
        ).stdout
    )


def test_usage_of_a_run(ask: Ask, call: Call, server: str) -> None:
    """The bill is of the run's session over many days, and names other runs of the session."""
    usage = tinker.usage.Usage()
    with tinker.ServiceClient(base_url=server, observers=[usage]) as service:
        training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
        other = service.create_lora_training_client("tinker/toy", rank=4).result(10)
        tokens: Any = {"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]}
        datum = tinker.Datum(tinker.ModelInput.from_ints([1, 2, 3]), tokens)
        training.forward_backward([datum], "cross_entropy").result(10)
        service.create_sampling_client(base_model="tinker/toy").compute_logprobs(
            datum.model_input
        ).result(10)
    found = ask("run usage", training.model_id, "--days", "30")
    assert found["tokens"] == {
        "tinker/toy": {"trained": 3, "prefilled": 3, "cached": 0, "sampled": 1}
    }
    assert found["other_training_run_ids"] == [other.model_id]
    assert found["cost"] is None
    shown = call("run usage", training.model_id).stdout
    assert other.model_id in shown
    assert "Prefilled (tokens)" in shown
    assert usage.total.total == 7


def test_a_run_without_a_session(call: Call) -> None:
    """An id that names no session is refused, and an unknown one is not found."""
    assert "There is no run nonsense" in call("run usage nonsense").stderr
    assert (
        "Error: The server has no usage of nonsense:train:0\nUsage is counted"
        in call("run usage nonsense:train:0").stderr
    )
