"""Checkpoint names of any text: a checkpoint is listed, loaded, changed and deleted under exactly
its name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinker
from tinker.local import State, create_app, serve_in_thread
from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings

# Whole names, and fragments, that paths could misinterpret.
ODD = [
    "a%61",
    "aa",
    "%2e%2e",
    "...",
    "%",
    "%%",
    "a b",
    " a",
    "a?b=c",
    "a#b",
    "ü",
    "日本",
    "e\u0301",
    "🙂",
    "a\\b",
    "..\\b",
    "a:b@c",
]
PIECES = st.sampled_from(
    ["%", "%61", "%2F", "?", "#", "&", ";", "+", " ", ".", "..", "\\", "\u200b", "a", "é", "日"]
)
LETTERS = st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
NAMES = st.one_of(
    st.sampled_from(ODD),
    st.lists(PIECES, min_size=1, max_size=6).map("".join),
    st.text(LETTERS, min_size=1, max_size=40),
)


def nameable(name: str) -> bool:
    """Return whether a checkpoint can have this name."""
    return (
        bool(name.strip())
        and name not in (".", "..")
        and "/" not in name
        and len(name) <= 255
        and not CONTROL.search(name)
    )


@pytest.fixture(scope="module", params=["http", "httpx"])
def training(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tinker.TrainingClient]:
    """Yield a run on a server behind either HTTP engine: on a port, and in this process."""
    state = State(ToyEngine, Settings(data_dir=tmp_path_factory.mktemp("server"), hold_seconds=0.2))
    if request.param == "http":
        with serve_in_thread(state) as url, tinker.ServiceClient(base_url=url) as service:
            yield service.create_lora_training_client("tinker/toy", rank=1).result(30)
        return
    transport = httpx.ASGITransport(create_app(state))
    with tinker.ServiceClient(base_url="http://server", transport=transport) as service:
        yield service.create_lora_training_client("tinker/toy", rank=1).result(30)
    state.close()


@pytest.fixture(scope="module")
def rest(training: tinker.TrainingClient) -> tinker.RestClient:
    """Return the REST client of the run's server."""
    return tinker.RestClient(training._run.runtime)


def listed(rest: tinker.RestClient, training: tinker.TrainingClient) -> set[str]:
    """Return the paths of the run's checkpoints."""
    found = rest.list_checkpoints(training.model_id).result(30).checkpoints
    return {one.tinker_path for one in found}


@settings(max_examples=30, deadline=None)
@given(name=NAMES.filter(nameable))
def test_a_checkpoint_is_found_under_its_name(
    training: tinker.TrainingClient, rest: tinker.RestClient, name: str
) -> None:
    """Every operation finds a checkpoint by its name, and deleting it leaves other checkpoints."""
    neighbours = {unquote(name), quote(name), f"{name}%"} - {name}
    names = [one for one in (name, *neighbours) if nameable(one)]
    path, *others = (training.save_state(one, overwrite=True).result(30).path for one in names)
    kept = set(others)
    assert path == f"tinker://{training.model_id}/weights/{name}"
    assert listed(rest, training) == {path, *kept}
    rest.publish_checkpoint_from_tinker_path(path).result(30)
    rest.unpublish_checkpoint_from_tinker_path(path).result(30)
    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(30)
    rest.get_weights_info_by_tinker_path(path).result(30)
    training.load_state(path).result(30)
    rest.delete_checkpoint_from_tinker_path(path).result(30)
    assert listed(rest, training) == kept
    for other in kept:
        rest.delete_checkpoint_from_tinker_path(other).result(30)


@settings(max_examples=10, deadline=None)
@given(name=NAMES.filter(nameable))
def test_a_checkpoint_is_downloaded_and_sampled_under_its_name(
    training: tinker.TrainingClient, rest: tinker.RestClient, name: str
) -> None:
    """The weights archive of any name can be downloaded, and a sampler can use them."""
    path = training.save_weights_for_sampler(name).result(30).path
    link = rest.get_checkpoint_archive_url_from_tinker_path(path).result(30)
    assert httpx.URL(link.url).path.endswith(f"/{name}.tar.gz")
    params = tinker.SamplingParams(max_tokens=1)
    sampler = training.create_sampling_client(path)
    assert sampler.sample(tinker.ModelInput.from_ints([1]), 1, params).result(30).sequences
    rest.delete_checkpoint_from_tinker_path(path).result(30)


@pytest.mark.parametrize("name", [".", "..", "a/b", "", "a\ud800"])
def test_a_name_that_no_path_can_hold_is_refused_at_once(
    training: tinker.TrainingClient, name: str
) -> None:
    """A name that no path can hold raises on the caller's line, for every kind of save."""
    for kind in ("state", "weights_for_sampler", "weights_external"):
        with pytest.raises(ValueError, match="a checkpoint"):
            getattr(training, f"save_{kind}")(name)


@pytest.mark.parametrize("path", ["weights/..", "weights/", "weights/a/", "..", "weights//a"])
def test_an_id_that_would_ask_for_another_path_is_refused_at_once(
    rest: tinker.RestClient, path: str
) -> None:
    """An id with a segment that would be lost in the URL raises on the caller's line."""
    with pytest.raises(ValueError, match="checkpoint_id cannot be part of a path"):
        rest.delete_checkpoint("run", path)


def test_a_redirect_keeps_the_name(connect: Callable[..., tinker.ServiceClient], wire: Any) -> None:
    """A gateway's redirect keeps the encoded name of a request."""
    rest = connect().create_rest_client()
    target = "http://server/api/v1/training_runs/run/checkpoints/weights/a%2561"
    asked = "training_runs/run/checkpoints/weights/a%61"
    wire.fail(asked, 307, headers={"location": target}, outside="a gateway's")
    with pytest.raises(tinker.NotFoundError, match="weights/a%61"):
        rest.delete_checkpoint("run", "weights/a%61").result(10)
    assert [exchange.request.url.raw_path for exchange in wire.exchanges][-2:] == [
        target.removeprefix("http://server").encode()
    ] * 2


def test_a_path_with_a_slash_too_many_is_not_decoded_twice(state: State) -> None:
    """The server does not redirect to a path that it has decoded."""

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(state))) as client:
            path = "/api/v1/training_runs/run/checkpoints/weights/a%2561/"
            return await client.delete(f"http://server{path}")

    assert asyncio.run(asked()).status_code == 404
