"""A sampler that is not the engine: it has a thread, weights from the disk and
failures of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.api import Api, GatedEngine, MakeApi

from tinker.local.engines.protocol import SampleBatch
from tinker.local.engines.toy import ToyEngine


class Elsewhere(ToyEngine):
    """A sampler that counts the weights it read, and can be out of reach."""

    def __init__(self) -> None:
        super().__init__(vocabulary=512)
        self.read, self.closed, self.reachable = list[Path](), 0, True

    def load_snapshot(self, directory: Path) -> Any:
        self.read.append(directory)
        return super().load_snapshot(directory)

    def open_batch(self, limit: int) -> Any:
        if not self.reachable:
            raise ConnectionError("the sampler cannot be reached")
        found: SampleBatch = super().open_batch(limit)
        return found

    def close(self) -> None:
        self.closed += 1


def saved_sampler(api: Api, model: str, seq_id: int, kind: str | None) -> str:
    """Save the weights of a model for a sampling session, and return its id."""
    chosen = {} if kind is None else {"kind": kind}
    saved = api.save_sampler(model, seq_id, sampling_session_seq_id=seq_id, **chosen)
    return api.result(saved)["sampling_session_id"]


def tokens(api: Api, sampler: str) -> list[int]:
    return api.result(api.sample(sampler))["sequences"][0]["tokens"]


def trained(api: Api) -> str:
    """Make a model and train it until its samples differ from the base model's."""
    model = api.model()
    api.loss(model, 1)
    api.wait(api.step(model, 2, learning_rate=5.0))
    return model


@pytest.mark.parametrize("kind", [None, "inflight"])
def test_samples_are_those_of_the_trained_weights(
    make_api: MakeApi, tmp_path: Path, kind: str | None
) -> None:
    """The sampler reads the weights that the engine saved, once, and draws the tokens that the
    engine would draw.
    """
    sampler = Elsewhere()
    api, alone = make_api(sampler=sampler), make_api(data_dir=tmp_path / "alone")
    wanted = tokens(alone, saved_sampler(alone, trained(alone), 3, kind))
    name = saved_sampler(api, trained(api), 3, kind)
    assert [tokens(api, name) for _ in range(2)] == [wanted, wanted]
    assert len(sampler.read) == 1


def test_samples_run_beside_a_training_step(make_api: MakeApi) -> None:
    """A sample is drawn while a training step runs."""
    engine = GatedEngine()
    api = make_api(engine, sampler=Elsewhere())
    model = api.model()
    step = api.loss(model, 1)
    assert engine.entered.wait(30)
    assert len(tokens(api, api.sampler(api.session()))) == 4
    assert engine.order == []
    engine.gate.set()
    api.wait(step)
    assert engine.order == [model]


def test_a_sampler_fails_by_itself(make_api: MakeApi) -> None:
    """Samples fail while their sampler cannot be reached, training goes on, and later samples are
    drawn.
    """
    sampler = Elsewhere()
    sampler.reachable = False
    api = make_api(sampler=sampler)
    name = saved_sampler(api, trained(api), 3, None)
    failure = ("server", "ConnectionError: the sampler cannot be reached")
    assert api.failure(api.sample(name)) == failure
    sampler.reachable = True
    assert len(api.result(api.sample(name, 1))["sequences"]) == 1


def test_each_is_closed_once(make_api: MakeApi) -> None:
    """The end of a server closes its sampler, and an engine that is its own sampler, once."""
    sampler, engine = Elsewhere(), Elsewhere()
    api, other = make_api(sampler=sampler), make_api(engine)
    for one in (api, other):
        tokens(one, one.sampler(one.session()))
        one.runner.run(one.state.aclose())
    assert (sampler.closed, engine.closed) == (1, 1)
