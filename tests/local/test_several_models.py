"""One server with several base models: each is named, trained, sampled and shown separately, and
takes its turns.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from support.api import Api, GatedEngine, MakeApi

import tinker
from tinker.cli import main
from tinker.local import Settings, running_server
from tinker.local.engines import choose_engine
from tinker.local.engines.toy import ToyEngine

ONE, TWO = "org/one", "org/two"


@pytest.fixture
def both(make_api: MakeApi) -> Api:
    """Return a server of two base models."""
    return make_api([ToyEngine(base_model=ONE), ToyEngine(base_model=TWO, max_context_length=512)])


def test_capabilities_list_each_model(both: Api) -> None:
    """Each model is listed with its name and context length."""
    found = both.ok("get_server_capabilities")["supported_models"]
    assert [(one["model_name"], one["max_context_length"]) for one in found] == [
        (ONE, 32_768),
        (TWO, 512),
    ]


def test_each_run_and_sampler_has_the_model_it_names(both: Api) -> None:
    """Runs and samplers use the engine of the base model they name; another name is refused with
    both.
    """
    session = both.session()
    runs = [both.model(session, number, base_model=name) for number, name in enumerate((ONE, TWO))]
    assert [both.ok("get_info", {"model_id": run})["model_name"] for run in runs] == [ONE, TWO]
    assert [list(served.engine._adapters) for served in both.state.served.models] == [
        [run] for run in runs
    ]  # type: ignore[union-attr]
    sampler = both.sampler(session, base_model=TWO)
    assert both.ok("get_sampler", sampler_id=sampler)["base_model"] == TWO
    both.fails("512", both.sample(sampler, tokens=[104] * 600))
    body = {"session_id": session, "model_seq_id": 9, "base_model": "org/three"}
    assert f"this server has '{ONE}', '{TWO}'" in both.refused("create_model", body)[1]


def test_checkpoints_go_back_to_their_model(both: Api) -> None:
    """A run created from a checkpoint has its base model without naming it; the other model cannot
    load the weights.
    """
    session = both.session()
    run, other = both.model(session, 0, base_model=TWO), both.model(session, 1, base_model=ONE)
    path = both.saved(run, 1, "a")
    made = both.result(both.load(path, session_id=session, model_seq_id=2))
    assert both.ok("get_info", {"model_id": made["model_id"]})["model_name"] == TWO
    both.fails(
        f"was trained on '{TWO}'; this server has '{ONE}'",
        both.load(path, model_id=other, seq_id=1),
    )


def test_a_checkpoint_that_waits_to_be_written_has_the_model_of_its_run(both: Api) -> None:
    """A checkpoint whose save has not run has the base model of its run."""
    session = both.session()
    run = both.create_model(session, 0, base_model=TWO)["model_id"]
    both.save(run, 1, "late")
    path = f"tinker://{run}/weights/late"
    made = both.load(path, session_id=session, model_seq_id=1)
    found = both.shared.store.find_model(made["model_id"])
    assert found is not None
    assert (found.base_model, found.engine_model) == (TWO, TWO)


def test_samples_of_a_checkpoint_need_no_name(both: Api) -> None:
    """A checkpoint's base model need not be named; naming the other one is refused."""
    run = both.model(base_model=TWO)
    path = both.result(both.save_sampler(run, 1, path="s"))["path"]
    assert len(both.result(both.sample(None, model_path=path))["sequences"]) == 1
    wrong = {
        "session_id": both.session(),
        "sampling_session_seq_id": 0,
        "base_model": ONE,
        "model_path": path,
    }
    assert (
        f"was trained on '{TWO}'; this server has '{ONE}'"
        in both.refused("create_sampling_session", wrong)[1]
    )


def test_everything_that_shows_models_shows_each(make_api: MakeApi) -> None:
    """The page with the queues, the list of models and the metrics show each model."""
    gated = GatedEngine(base_model=TWO)
    api = make_api([ToyEngine(base_model=ONE), gated])
    model = api.model(base_model=TWO)
    waiting = api.loss(model, 1)
    assert gated.entered.wait(30)
    facts = api.get("/overview").json()
    pending = [(one["base_model"], one["pending"]) for one in facts["models"]]
    assert pending == [(ONE, {"sampling": 0, "training": 0}), (TWO, {"sampling": 0, "training": 1})]
    assert [one["id"] for one in api.get("/v1/models").json()["data"]] == [ONE, TWO]
    pytest.importorskip("prometheus_client")
    metrics = api.get("/metrics").text
    assert f'tinker_pending_requests{{base_model="{TWO}",kind="training"}} 1.0' in metrics
    assert f'tinker_pending_requests{{base_model="{ONE}",kind="training"}} 0.0' in metrics
    gated.gate.set()
    api.wait(waiting)


def test_texts_of_each_model_are_completed(both: Api) -> None:
    """A completion is drawn from the base that it names."""
    for name in (ONE, TWO):
        body = {"model": name, "prompt": "e", "max_tokens": 2}
        answer = both.runner.run(both.client.post("/v1/completions", json=body))
        assert (answer.status_code, answer.json()["model"]) == (200, name)


def test_a_busy_model_leaves_the_other_its_turns(make_api: MakeApi) -> None:
    """However many requests of one model wait, the other model's request comes next."""
    busy, quiet = GatedEngine(base_model=ONE), ToyEngine(base_model=TWO)
    api, order = make_api([busy, quiet]), list[str]()
    session = api.session()
    runs = [api.model(session, number, base_model=ONE) for number in range(8)]
    other = api.model(session, 8, base_model=TWO)
    futures = [api.loss(run, 1) for run in runs]
    assert busy.entered.wait(30)
    futures.append(api.loss(other, 1))
    for future in futures:
        found = api.state.futures.find(future["request_id"])
        found.on_done = lambda done: order.append(done.request_id)
    busy.gate.set()
    api.results(futures)
    assert order[1] == futures[-1]["request_id"]


def test_another_name_is_the_first_model_where_that_is_wanted(make_api: MakeApi) -> None:
    """Names of loaded models keep their meaning; any other name is the first model."""
    api = make_api([ToyEngine(base_model=ONE), ToyEngine(base_model=TWO)], any_base_model=True)
    answer = api.ok("create_session", {"tags": [], "sdk_version": "0"})
    assert f"serves '{ONE}' under every name but '{TWO}'" in answer["warning_message"]
    api.model(answer["session_id"], 0, base_model="org/three")
    api.model(answer["session_id"], 1, base_model=TWO)
    assert [len(served.engine._adapters) for served in api.state.served.models] == [1, 1]  # type: ignore[union-attr]


def test_two_models_of_one_name_are_refused(make_api: MakeApi) -> None:
    """Two models of one name are refused by the command before it serves, because clients could not
    distinguish them.
    """
    api = make_api([ToyEngine(base_model=ONE), ToyEngine(base_model=ONE)])
    for _ in range(2):
        assert f"two models are called '{ONE}'" in api.refused("get_server_capabilities")[1]
    result = CliRunner().invoke(
        main, ["serve", "--engine", "toy", "--model", ONE, "--model", ONE, "--port", "0"]
    )
    assert (
        result.exit_code,
        result.output.startswith(f"Error: two models are called '{ONE}'"),
    ) == (1, True)


def test_engines_are_named_once_or_for_each_model() -> None:
    """A number of engines other than one or that of the models is refused; the toy needs no model
    name.
    """
    result = CliRunner().invoke(
        main,
        [
            "serve",
            "--engine",
            "toy",
            "--engine",
            "toy",
            *(f"--model=org/{n}" for n in range(3)),
            "--port",
            "0",
        ],
    )
    assert (result.exit_code, "3 models and 2 engines" in result.output) == (1, True)
    assert (choose_engine(None, "tinker/toy"), choose_engine(None, ONE)) == ("toy", "torch")


def test_a_client_uses_both(tmp_path: Path) -> None:
    """One service client trains and samples either model."""
    with running_server(Settings(data_dir=tmp_path), "toy", model=[ONE, TWO]) as url:
        service = tinker.ServiceClient(base_url=url)
        assert [one.model_name for one in service.get_server_capabilities().supported_models] == [
            ONE,
            TWO,
        ]
        prompt, params = tinker.ModelInput.from_ints([101]), tinker.SamplingParams(max_tokens=2)
        for name in (ONE, TWO):
            training = service.create_lora_training_client(name, rank=4)
            assert training.get_info().model_data.model_name == name
            sampler = training.save_weights_and_get_sampling_client()
            assert sampler.get_base_model() == name
            assert sampler.sample(prompt, 1, params).result().sequences[0].tokens


def test_the_command_serves_several_models(tmp_path: Path) -> None:
    """The command names its models in its first line, and each can be requested."""
    command = [sys.executable, "-m", "tinker.cli", "serve", "--port", "0", "--data", str(tmp_path)]
    options = ["--model", "tinker/toy", "--model", TWO, "--engine", "toy"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None
        answer = httpx.get(f"{found[0]}/v1/models").json()
        process.terminate()
    assert line.startswith(f"Serving tinker/toy, {TWO} at ")
    assert [one["id"] for one in answer["data"]] == ["tinker/toy", TWO]


def test_toy_and_torch_side_by_side(tmp_path: Path) -> None:
    """The packaged model in torch and the toy are served together, each with a separate engine."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    with running_server(
        Settings(data_dir=tmp_path), ["torch", "toy"], model=["tinker/babble", "tinker/toy"]
    ) as url:
        service = tinker.ServiceClient(base_url=url)
        for name in ("tinker/babble", "tinker/toy"):
            training = service.create_lora_training_client(name, rank=4)
            data: Any = tinker.Datum(
                model_input=tinker.ModelInput.from_ints([101, 102]),
                loss_fn_inputs={"target_tokens": [102, 103]},
            )
            assert training.forward_backward([data], "cross_entropy").result().loss > 0
            training.optim_step(tinker.AdamParams(learning_rate=0.01)).result()
