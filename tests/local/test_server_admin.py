"""The audit log, usage by the hour and storage."""

from __future__ import annotations

from typing import Any

import pytest
from support.api import Api, Clock, MakeApi, datum
from support.tolerances import FLOAT64, near

HOUR = 3600.0
DAY = {"starting_on": "1970-01-02T00:00:00Z", "ending_before": "1970-01-03T00:00:00Z"}


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.seconds = 24 * HOUR + 60
    return clock


@pytest.fixture
def api(make_api: MakeApi, clock: Clock) -> Api:
    """Return a server whose clock the test moves, one minute past midnight of 2 January 1970."""
    return make_api(clock=clock, idle_session_seconds=1e9)


def audited(api: Api, **query: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = api.ok("get_audit_log", query=query)["entries"]
    return entries


def test_what_happens_to_checkpoints_is_written_down(api: Api) -> None:
    """In order: made, read to train, sample and download, published, limited, copied, deleted."""
    session, model = api.begin()
    path = api.saved(model, 1, "a")
    sampled = api.result(api.save_sampler(model, 2, path="s"))["path"]
    api.result(api.load(path, session_id=session, model_seq_id=1))
    api.sampler(session, model_path=sampled)
    where = {"training_run_id": model, "checkpoint_id": "weights/a"}
    api.call("get_checkpoint_archive", **where)
    api.ok("publish_checkpoint", **where)
    api.ok("set_checkpoint_ttl", {"ttl_seconds": 3600}, **where)
    copied = api.ok("copy_weights", {"source_path": path})["tinker_path"]
    api.ok("delete_checkpoint", **where)
    entries = audited(api)
    assert [(entry["event"], entry["tinker_path"], entry.get("purpose")) for entry in entries] == [
        ("checkpoint_created", path, None),
        ("checkpoint_created", sampled, None),
        ("checkpoint_read", path, "train"),
        ("checkpoint_read", sampled, "sample"),
        ("checkpoint_read", path, "download"),
        ("checkpoint_published", path, None),
        ("checkpoint_ttl_set", path, None),
        ("checkpoint_copied", copied, None),
        ("checkpoint_deleted", path, None),
    ]
    assert entries[0]["timestamp"] == "1970-01-02T00:01:00Z"
    assert entries[0]["model_id"] == model
    assert entries[6]["event_details"]["ttl_seconds"] == 3600
    assert entries[7]["event_details"]["source"] == path


def test_the_log_is_asked_by_kind_and_day(api: Api, clock: Clock) -> None:
    """The log can be filtered by kind and by day in UTC."""
    session = api.session()
    api.result(api.save(api.model(session), 1, "a"))
    clock.seconds += 24 * HOUR
    api.ok("set_session_project", {"project_id": "p"}, session_id=session)
    api.ok("delete_api_key", headers={"x-api-key": "tml-old"})
    assert [entry["event"] for entry in audited(api, event_type="projects")] == ["session_moved"]
    assert [entry["event"] for entry in audited(api, event_type="organizations")] == [
        "api_key_revoked"
    ]
    assert audited(api, event_type="teams") == []
    assert [entry["event"] for entry in audited(api, day="1970-01-02")] == ["checkpoint_created"]
    assert len(audited(api, event_type="all")) == 3
    assert "tml-old" not in str(audited(api))
    for query in ({"event_type": "nonsense"}, {"day": "yesterday"}):
        assert api.refused("get_audit_log", query=query)[0] == 422


def test_the_log_is_bounded(make_api: MakeApi) -> None:
    """Only the newest entries are kept."""
    api = make_api(max_audit_entries=2)
    model = api.model()
    for number, name in enumerate("abc", 1):
        api.result(api.save(model, number, name))
    assert [entry["tinker_path"][-1] for entry in audited(api)] == ["b", "c"]


def test_tokens_are_counted_by_the_hour(api: Api, clock: Clock) -> None:
    """Training, prompt and sampled tokens are counted by the hour and session, without prices."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    api.result(api.loss(model, 1, data=[datum([1, 2, 3], [2, 3, 4]), datum([1], [2])]))
    api.failure(api.loss(model, 2, loss_fn="ppo"))
    api.result(api.sample(sampler, 0, num_samples=2))
    clock.seconds += HOUR
    api.result(api.sample(sampler, 1))
    answer = api.ok("get_billing_usage", query=DAY)
    events = [(event["bucket_start"], event["event_info"]) for event in answer["data"]]
    assert sorted(events, key=str) == [
        ("1970-01-02T00:00:00Z", {"type": "sampling_prefill", "cached": False, "token_count": 2}),
        ("1970-01-02T00:00:00Z", {"type": "sampling_sample", "token_count": 8}),
        ("1970-01-02T00:00:00Z", {"type": "training", "token_count": 4}),
        ("1970-01-02T01:00:00Z", {"type": "sampling_prefill", "cached": False, "token_count": 2}),
        ("1970-01-02T01:00:00Z", {"type": "sampling_sample", "token_count": 4}),
    ]
    one = answer["data"][0]
    assert (one["session_id"], one["project_id"], one["base_model"]) == (
        session,
        "default",
        "tinker/toy",
    )
    assert one["bucket_end"] == "1970-01-02T01:00:00Z"
    assert not [key for event in answer["data"] for key in event if "usd" in key]
    assert answer["sessions"] == {session: {}}
    elsewhere = {
        name: time.replace("00:00Z", "00:00+02:00").replace("T00", "T02")
        for name, time in DAY.items()
    }
    assert api.ok("get_billing_usage", query=elsewhere)["data"] == answer["data"]


def test_checkpoints_are_counted_and_their_storage_by_the_hour(api: Api, clock: Clock) -> None:
    """Storage is counted by the hour from the save to the deletion."""
    model = api.model(api.session())
    api.result(api.save(model, 1, "a"))
    (size,) = [
        one["size_bytes"]
        for one in api.ok("list_checkpoints", training_run_id=model)["checkpoints"]
    ]
    clock.seconds += 2 * HOUR
    api.ok("delete_checkpoint", training_run_id=model, checkpoint_id="weights/a")
    clock.seconds += 5 * HOUR
    found: dict[str, list[float]] = {}
    for event in api.ok("get_billing_usage", query=DAY)["data"]:
        info = event["event_info"]
        found.setdefault(info["type"], []).append(info.get("count", info.get("gigabyte_hours")))
    minute = size / 1e9 / 60
    assert found == {
        "checkpoint": [1],
        "storage": [near(m * minute, 3, unit=FLOAT64) for m in (59, 60, 1)],
    }


@pytest.mark.parametrize(
    "query",
    [
        {},
        {**DAY, "starting_on": "1970-01-02T00:30:00Z"},
        {**DAY, "starting_on": "1970-01-02T00:00:00"},
        {**DAY, "ending_before": "1970-01-02T00:00:00Z"},
        {**DAY, "ending_before": "1970-01-20T00:00:00Z"},
        {**DAY, "ending_before": "soon"},
    ],
)
def test_usage_is_asked_in_full_hours_of_two_weeks(api: Api, query: dict[str, str]) -> None:
    """Usage is returned for full hours within two weeks; any other range is 400."""
    assert api.refused("get_billing_usage", query=query)[0] == 400


def test_storage_is_summed_by_project(api: Api) -> None:
    """The storage of a project is its present number of checkpoints and bytes."""
    one, other = api.session(), api.session()
    for session in (one, other):
        api.result(api.save(api.model(session), 1, "a"))
    api.result(api.save_sampler(f"{one}:train:0", 2, path="s"))
    api.ok("set_session_project", {"project_id": "p"}, session_id=one)
    items = {item["project_id"]: item for item in api.ok("get_checkpoint_storage_usage")["data"]}
    assert {name: item["checkpoint_count"] for name, item in items.items()} == {
        "p": 2,
        "default": 1,
    }
    sizes = [
        one["size_bytes"]
        for one in api.ok("list_checkpoints", training_run_id=f"{one}:train:0")["checkpoints"]
    ]
    assert items["p"]["size_bytes"] == sum(sizes)
    assert items["p"]["size_gigabytes"] == near(sum(sizes) / 1e9, len(sizes), unit=FLOAT64)
    assert api.ok("get_checkpoint_storage_usage", query={"project_id": "none"})["data"] == []
