"""The data of the server's page; tests/browser tests the page itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.api import Api, Clock, MakeApi, datum

from tinker.local.engines.toy import ToyEngine
from tinker.local.storage.futures import Journal
from tinker.local.storage.records import RUN_TABLES, HistoryPoint, RunHistory
from tinker.local.web import MAX_POINTS, describe_curves

KEY = "a key that nobody may read"


def overview(api: Api, run: str = "", **headers: str) -> Any:
    """Return the data that the page receives."""
    answer = api.get("/overview", params={"run": run}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_page_shows_what_the_server_knows(api: Api) -> None:
    """The page's data hold sessions, runs with their curves, checkpoints, tokens and requests."""
    session, model = api.begin()
    for number in (1, 3):
        api.wait(api.loss(model, number))
        api.wait(api.step(model, number + 1, learning_rate=0.1))
    api.wait(api.save(model, 5, "one"))
    facts = overview(api, model)
    assert [one["id"] for one in facts["sessions"]] == [session]
    assert [(one["id"], one["steps"], one["state"]) for one in facts["runs"]] == [
        (model, 2, "open")
    ]
    assert [step for step, _ in facts["curves"]["loss per token"]] == [1, 2]
    assert facts["curves"]["loss per token"][1][1] < facts["curves"]["loss per token"][0][1]
    assert {"loss:sum", "tokens:sum", "grad_norm:mean"} <= facts["curves"].keys()
    assert [one["path"] for one in facts["checkpoints"]] == [f"tinker://{model}/weights/one"]
    assert facts["tokens"] == [{"kind": "training", "base_model": "tinker/toy", "count": 4}]
    assert facts["requests"]["refused"] == []
    api.refused("get_session", session_id="nobody")
    assert overview(api)["requests"]["refused"] == [[404, "get_session", 1]]
    assert facts["pending"] == {"sampling": 0, "training": 0}
    assert facts["models"][0]["restarts"] == []
    assert facts["stored_bytes"] == facts["checkpoints"][0]["nbytes"] > 0
    assert overview(api)["curves"] == overview(api, "another")["curves"] == {}


def test_live_sessions_are_listed_first(make_api: MakeApi, clock: Clock) -> None:
    """A session that has ended comes after all that have not, although it is newer."""
    api = make_api(clock=clock)
    live, ended = api.session(), api.session()
    api.finish(ended, "completed")
    assert [(one["id"], one["alive"]) for one in overview(api)["sessions"]] == [
        (live, True),
        (ended, False),
    ]
    assert overview(api)["sessions"][0]["silent_seconds"] == 0.0


def test_runs_have_their_name_project_and_tags(api: Api) -> None:
    """A run has its name, the rest of its metadata, its session's tags, and the project."""
    session = api.session(tags=["night", "a"], project_id="letters")
    api.model(session, user_metadata={"name": "first try", "seed": 3})
    (run,) = overview(api)["runs"]
    assert (run["name"], run["project"], run["tags"]) == (
        "first try",
        "letters",
        ["a", "night", "seed=3"],
    )


def test_the_data_need_the_key(make_api: MakeApi) -> None:
    """The data need the key; the page itself holds none of them, so it needs no key."""
    api = make_api(api_key=KEY)
    refused = api.get("/overview")
    assert (refused.status_code, refused.headers["x-content-type-options"]) == (401, "nosniff")
    assert api.get("/overview", params={"key": KEY, "api_key": KEY}).status_code == 401
    assert overview(api, **{"x-api-key": KEY})["models"][0]["base_model"] == "tinker/toy"
    page = api.get("/")
    assert page.status_code == 200
    assert "tinker/toy" not in page.text


def test_losses_before_one_step_are_one_point() -> None:
    """Sums are added, extremes kept, means averaged; a step without a loss adds nothing."""
    history = RunHistory(Journal(None), "run", "tinker/toy", 4)
    history.add_loss({"loss:sum": 6.0, "weights:sum": 2.0, "reward:mean": 1.0, "ratio:max": 3.0})
    history.add_loss({"loss:sum": 2.0, "weights:sum": 2.0, "reward:mean": 2.0, "ratio:max": 1.0})
    history.add_step({"grad_norm:mean": 0.5}, at=7.0)
    history.add_step({}, at=8.0)
    assert list(history.points) == [
        HistoryPoint(
            1,
            7.0,
            {
                "loss per token": 2.0,
                "loss:sum": 8.0,
                "weights:sum": 4.0,
                "reward:mean": 1.5,
                "ratio:max": 3.0,
                "grad_norm:mean": 0.5,
            },
        ),
        HistoryPoint(2, 8.0, {}),
    ]


def test_reported_metrics_are_curves_of_their_run(api: Api) -> None:
    """Reports of a run are drawn by the client's steps, but for what no database can hold."""
    model = api.model()
    told = {"step": 1, "reward": 0.25, "note": "not a number"}
    huge = {"step": 3, "huge": 10**400, "yes": True}
    api.report(
        model, told, huge, {"step": 2**70, "reward": 9.0}, {"step": 3, "reward": 1}, {"reward": 9.0}
    )
    api.report("no run", {"step": 4, "reward": 9.0})
    facts = overview(api, model)
    assert facts["curves"] == {"reward": [[1, 0.25], [3, 1.0]]}
    assert facts["runs"][0]["metrics"] == {"reward": 1.0}


def test_reports_survive_with_the_journal(tmp_path: Path) -> None:
    """What a client reported is kept with the points of the run."""
    journal = Journal(tmp_path)
    journal.add_tables(*RUN_TABLES)
    RunHistory(journal, "run", "tinker/toy", 4).add_report(2, {"reward": 0.5}, at=7.0)
    journal.flush()
    assert list(RunHistory(journal, "run", "tinker/toy", 4).reports) == [
        HistoryPoint(2, 7.0, {"reward": 0.5})
    ]
    journal.close()


def test_a_run_says_when_it_began_and_that_it_has_diverged(make_api: MakeApi, clock: Clock) -> None:
    """The beginning stays when requests follow, and a run has diverged until a request succeeds."""
    engine = ToyEngine(vocabulary=512)
    api = make_api(engine, clock=clock)
    model = api.model(api.session())
    began = clock()
    clock.seconds += 9.0
    api.wait(api.loss(model, 1))
    (run,) = overview(api)["runs"]
    assert (run["begun_at"], run["last_request_at"], run["state"]) == (began, began + 9.0, "open")
    tensors: Any = engine._adapter(model).weights.tensors
    kept = dict(tensors)
    tensors.update({name: part * float("nan") for name, part in kept.items()})
    api.wait(api.loss(model, 2))
    (run,) = overview(api)["runs"]
    assert run["state"] == "diverged"
    assert "the weights have probably diverged" in run["reason"]
    tensors.update(kept)
    api.wait(api.loss(model, 3))
    assert overview(api)["runs"][0]["state"] == "open"
    clock.seconds += 61.0
    assert overview(api)["runs"][0]["state"] == "idle"  # its client has not been heard from


def test_a_loss_of_the_client_has_no_loss_per_token(api: Api) -> None:
    """Weights below 0 are a gradient, from then on; its sum, and a policy's, is of no token."""
    model = api.model(api.session())
    for number, weights in ((1, [1.0, 1.0]), (3, [1.0, -0.5]), (5, [1.0, 1.0])):
        api.wait(api.loss(model, number, data=[datum([104, 101], [101, 108], weights=weights)]))
        api.wait(api.step(model, number + 1))
    curves = overview(api, model)["curves"]
    assert [step for step, _ in curves["loss per token"]] == [1]
    assert [step for step, _ in curves["loss:sum"]] == [1, 3]
    assert [step for step, _ in curves["surrogate_loss:sum"]] == [2]
    policy = api.model()
    data = [datum([104], [101], logprobs=[-1.0], advantages=[1.0])]
    api.wait(api.loss(policy, 1, loss_fn="importance_sampling", data=data))
    api.wait(api.step(policy, 2))
    assert "loss per token" not in overview(api, policy)["curves"]


def test_long_curves_are_thinned_and_keep_their_extremes() -> None:
    """At most MAX_POINTS are drawn, always spikes and end, and the same ones while it grows."""
    values = {700: 50.0, 900: -50.0}
    points = [
        HistoryPoint(step, 0.0, {"loss": values.get(step, step % 7.0), "bad": float("nan")})
        for step in range(1, 1502)
    ]
    curves = describe_curves(points)
    assert curves.keys() == {"loss"}
    drawn = curves["loss"]
    assert len(drawn) <= MAX_POINTS
    assert drawn == sorted(drawn)
    assert [700, 50.0] in drawn
    assert [900, -50.0] in drawn
    assert drawn[-1] == [1501, 1501 % 7.0]
    shorter = describe_curves(points[:-50])["loss"]
    assert [point for point in shorter if point[0] < 1440] == [
        point for point in drawn if point[0] < 1440
    ]
