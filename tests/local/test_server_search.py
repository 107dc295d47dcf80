"""The search for checkpoints: conditions that all must hold, and pages that are the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.api import Api, Clock, MakeApi


def found(api: Api, **request: Any) -> list[str]:
    answer = api.ok("search_checkpoints", request)
    return [one["checkpoint_id"] for one in answer["checkpoints"]]


@pytest.fixture
def kept(make_api: MakeApi) -> Api:
    """Return a server with four checkpoints, saved one second apart but for the last two."""
    clock = Clock()
    api = make_api(clock=clock)
    model = api.model()
    api.result(api.save(model, 1, "a", user_metadata={"team": "red", "stage": "1"}))
    clock.seconds += 1
    api.result(api.save(model, 2, "b", user_metadata={"team": "red"}))
    clock.seconds += 1
    api.result(api.save_sampler(model, 3, path="c"))
    api.result(api.ok("save_weights_external", {"model_id": model, "seq_id": 4, "path": "d"}))
    return api


def test_every_condition_must_hold(kept: Api) -> None:
    """Metadata, kind, base model, owner and project each leave out what does not match."""
    assert found(kept)[2:] == ["weights/b", "weights/a"]
    assert set(found(kept)[:2]) == {"sampler_weights/c", "external_weights/d"}
    assert found(kept, user_metadata={"team": "red"}) == ["weights/b", "weights/a"]
    assert found(kept, user_metadata={"team": "red", "stage": "1"}) == ["weights/a"]
    assert found(kept, checkpoint_type="sampler") == ["sampler_weights/c"]
    assert len(found(kept, base_models=["tinker/toy", "x"])) == 4
    assert found(kept, base_models=["x"]) == found(kept, base_models=[]) == []
    assert found(kept, project_ids=["nobody's"]) == found(kept, project_ids=[]) == []
    assert len(found(kept, owner={"type": "accessible"})) == 4
    assert found(kept, owner={"type": "user", "owner_urns": ["somebody"]}) == []


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limit=st.integers(1, 5))
def test_pages_are_the_whole(kept: Api, limit: int) -> None:
    """The pages have every checkpoint once, in one order, also within the same second."""
    request: dict[str, Any] = {"limit": limit}
    pages: list[str] = []
    while True:
        answer = kept.ok("search_checkpoints", request)
        assert len(answer["checkpoints"]) <= limit
        pages += [one["checkpoint_id"] for one in answer["checkpoints"]]
        if (cursor := answer.get("next_cursor")) is None:
            break
        request["cursor"] = cursor
    assert pages == found(kept)


@pytest.mark.parametrize("limit", [0, 201])
def test_the_limit_has_limits(kept: Api, limit: int) -> None:
    """A page of zero, or of too many, is 422."""
    assert kept.refused("search_checkpoints", {"limit": limit})[0] == 422
