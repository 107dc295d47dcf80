"""A server with durability `step`, killed and restarted on its folder: accepted requests are
carried out exactly once.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.api import Api, Clock, GatedEngine, MakeApi, datum, loss_body, sample_body, step_body

from tinker.local.app import HANDLERS
from tinker.local.call import KNOWN_FAILURE
from tinker.local.engines.protocol import LossResult
from tinker.local.engines.toy import ToyEngine
from tinker.local.settings import Settings
from tinker.local.state import recover
from tinker.local.storage.futures import (
    REQUESTS,
    RESULTS,
    RUNS,
    Journal,
    JournalInUseError,
    RequestFailure,
    Table,
)
from tinker.local.storage.records import RUN_TABLES

RATE = 1e-3  # so small that nothing is learnt by heart, where all weights would look the same


@pytest.fixture
def kept(make_api: MakeApi) -> Api:
    """Return a server with durability `step`."""
    return make_api(durability="step")


def restart(api: Api, make_api: MakeApi, *engine: ToyEngine, **settings: Any) -> Api:
    """Restart a server that was killed, in the same folder."""
    api.state.journal.close()  # as the end of its process does
    again = make_api(*engine, durability="step", **settings)
    again.runner.run(recover(again.state, HANDLERS))
    return again


def done(api: Api, future: Any) -> Any:
    """Wait for a result and return it."""
    api.wait(future)
    return api.result(future)


def train(api: Api, model: str, first: int, steps: int) -> None:
    for step in range(steps):
        api.loss(model, first + 2 * step)
        done(api, api.step(model, first + 2 * step + 1, learning_rate=RATE))


def logprobs(api: Api, model: str, seq_id: int) -> Any:
    return done(api, api.loss(model, seq_id))["loss_fn_outputs"]


def undisturbed(api: Api, make_api: MakeApi, steps: int) -> Any:
    """Return the log-probabilities after so many steps on a server that was not killed."""
    quiet = make_api(data_dir=api.state.settings.data_dir / "other")
    other = quiet.model()
    train(quiet, other, 1, steps)
    return logprobs(quiet, other, 2 * steps + 1)


def test_a_run_goes_on_where_it_was(kept: Api, make_api: MakeApi) -> None:
    """After a kill, weights, optimizer and the accumulated gradient are those of a run whose server
    was not killed.
    """
    model = kept.model()
    train(kept, model, 1, 3)
    done(kept, kept.loss(model, 7))
    again = restart(kept, make_api)
    done(again, again.step(model, 8, learning_rate=RATE))
    assert logprobs(again, model, 9) == undisturbed(kept, make_api, 4)


def test_results_are_there_and_nothing_is_done_again(kept: Api, make_api: MakeApi) -> None:
    """Results that were not fetched survive a kill; a sample without a seed is not drawn again."""
    session = kept.session()
    sampler = kept.sampler(session)
    future = kept.sample(sampler, 3, params={"seed": None, "max_tokens": 8})
    model = kept.model(session)
    step = kept.step(model, 1, learning_rate=RATE)
    before = done(kept, future), done(kept, step)
    again = restart(kept, make_api)
    assert (again.result(future), again.result(step)) == before
    assert again.sample(sampler, 3, params={"seed": None, "max_tokens": 8}) == future
    assert again.refused("asample", sample_body(sampler, 3, num_samples=2))[0] == 409


def test_what_was_accepted_and_not_done_is_done(kept: Api, make_api: MakeApi) -> None:
    """A request that waited for an earlier one when the server was killed is carried out once the
    earlier one arrives.
    """
    model = kept.model()
    late = kept.step(model, 2, learning_rate=RATE)
    again = restart(kept, make_api)
    assert again.state.futures.find(late["request_id"]).outcome is None
    done(again, again.loss(model, 1))
    assert "error" not in done(again, late)


def test_a_step_behind_a_failed_gradient_is_not_run_after_a_kill(
    kept: Api, make_api: MakeApi
) -> None:
    """A step still fails after a kill if its client had not received the earlier failure, and runs
    if it had.
    """
    model = kept.model()
    done(kept, kept.loss(model, 1, loss_fn="ppo"))  # without its inputs
    steps = [_step(kept, model, number, known) for number, known in ((3, 0), (4, 1))]
    again = restart(kept, make_api)
    done(again, again.loss(model, 2))
    behind, received = (done(again, step) for step in steps)
    assert behind["failed_operation"] == "forward_backward"
    assert "before it failed" in behind["error"]
    assert "error" not in received


def test_a_step_behind_two_failures_is_not_run_after_a_kill(kept: Api, make_api: MakeApi) -> None:
    """The later failure still counts when the earlier one is repeated, as its result was dropped
    before the kill.
    """
    model = kept.model()
    for number, known in ((1, 0), (2, 1)):
        body = loss_body(model, number, loss_fn="ppo")  # without its inputs
        failed = kept.ok("forward_backward", body, headers={KNOWN_FAILURE: str(known)})
        kept.wait(failed)
        if number == 1:
            kept.state.journal.drop_result(failed["request_id"])
    again = restart(kept, make_api)
    behind, received = (
        done(again, _step(again, model, number, known)) for number, known in ((3, 1), (4, 2))
    )
    assert behind["failed_operation"] == "forward_backward"
    assert "error" not in received


def _step(api: Api, model: str, number: int, known_failure: int) -> Any:
    body = step_body(model, number, learning_rate=RATE)
    return api.ok("optim_step", body, headers={KNOWN_FAILURE: str(known_failure)})


class OnceFailingEngine(ToyEngine):
    """Has no memory for its first loss."""

    has_failed = False

    def forward_backward(self, *arguments: Any, **options: Any) -> LossResult:
        if not self.has_failed:
            self.has_failed = True
            raise MemoryError
        return super().forward_backward(*arguments, **options)


def test_a_gradient_that_failed_is_not_computed_after_a_kill(make_api: MakeApi) -> None:
    """A gradient that failed is not run again after a kill, although it would succeed now: a step
    whose client had received the failure is one without it.
    """
    kept = make_api(OnceFailingEngine(vocabulary=512), durability="step")
    model = kept.model()
    before = done(kept, kept.loss(model, 1))
    again = restart(kept, make_api)
    assert again.result({"request_id": f"{model}:request:1"}) == before
    done(again, _step(again, model, 2, 1))
    assert logprobs(again, model, 3) == undisturbed(kept, make_api, 0)


@pytest.mark.parametrize("settings", [{}, {"max_results": 1}], ids=["", "results are dropped"])
def test_a_number_that_was_given_up_stays_given_up(
    make_api: MakeApi, settings: dict[str, Any]
) -> None:
    """A request that comes after its number was given up is refused also after a kill: the next
    step has exactly the gradients that were reported as done.
    """
    clock = Clock()
    start = partial(restart, make_api=make_api, clock=clock, **settings)
    api = make_api(durability="step", clock=clock, **settings)
    model, other = api.model(), make_api(data_dir=api.state.settings.data_dir / "other")
    quiet = other.model()
    done(api, api.step(model, 1))
    done(other, other.step(quiet, 1))
    api = start(api)
    for number, tokens in ((3, [104, 101]), (5, [101, 108])):
        data = [datum(tokens, tokens)]
        future = api.loss(model, number, data=data)
        clock.seconds += api.state.settings.gap_seconds
        api.state.notify()
        done(api, future)
        done(other, other.loss(quiet, number // 2 + 1, data=data))
        api = start(api)
        api.refuses(409, "is stale", "optim_step", step_body(model, number - 1))
        done(api, future)
    gated = GatedEngine()
    api = restart(api, make_api, gated, clock=clock, **settings)
    assert gated.entered.wait(30)  # for the gradient 3, and killed before it has run again
    api = start(api)
    gated.gate.set()
    for number in (4, 2):
        api.refuses(409, "is stale", "optim_step", step_body(model, number))
    done(api, api.step(model, 6, learning_rate=RATE))
    done(other, other.step(quiet, 4, learning_rate=RATE))
    assert logprobs(api, model, 7) == logprobs(other, quiet, 5)


def test_a_gradient_that_was_never_accepted_is_computed_when_it_comes(
    kept: Api, make_api: MakeApi
) -> None:
    """A result without its request, left by a server killed before it answered, is not used for the
    repeated request.
    """
    model = kept.model()
    future = kept.loss(model, 1)
    kept.wait(future)
    journal = kept.state.journal
    journal.note(REQUESTS.delete("request_id = ?", future["request_id"]))
    journal.flush()
    again = restart(kept, make_api)
    done(again, again.loss(model, 1))
    done(again, again.step(model, 2, learning_rate=RATE))
    assert logprobs(again, model, 3) == undisturbed(kept, make_api, 1)


def test_a_save_that_was_written_is_repeated(kept: Api, make_api: MakeApi) -> None:
    """A save whose checkpoint was in place at the kill, but whose result was not stored, is
    repeated without a conflict.
    """
    model = kept.model()
    future = kept.save(model, 1, "a")
    path = done(kept, future)["path"]
    kept.state.journal.drop_result(future["request_id"])
    again = restart(kept, make_api)
    assert done(again, future)["path"] == path
    assert again.refused("save_weights", {"model_id": model, "seq_id": 2, "path": "a"})[0] == 409


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("snapshot", {}), ("inflight", {}), ("snapshot", {"max_results": 1})],
    ids=["snapshot", "inflight", "results are no longer kept"],
)
def test_samplers_of_weights_without_a_name(
    make_api: MakeApi, kind: str, settings: dict[str, Any]
) -> None:
    """A run, and a sampling session of it with the same weights, go on after a kill, however long
    ago they were made: only results that nothing needs are dropped.
    """
    kept = make_api(durability="step", **settings)
    model = kept.model()
    train(kept, model, 1, 2)
    body = {"model_id": model, "seq_id": 5, "sampling_session_seq_id": 0, "kind": kind}
    sampler = done(kept, kept.ok("save_weights_for_sampler", body))["sampling_session_id"]
    before = done(kept, kept.sample(sampler, 0))["sequences"][0]["tokens"]
    train(kept, model, 6, 1)
    again = restart(kept, make_api)
    assert done(again, again.sample(sampler, 1))["sequences"][0]["tokens"] == before
    assert logprobs(again, model, 8) == undisturbed(kept, make_api, 3)


def test_clients_of_samplers_go_on_in_their_logs(kept: Api, make_api: MakeApi) -> None:
    """After a kill, a client's cursor still finds every sample that it has not fetched, and later
    ones.
    """
    sampler = kept.sampler(kept.session())
    done(kept, kept.sample(sampler, 0))
    done(kept, kept.sample(sampler, 1))
    target = {"sampling_session_id": sampler, "cloned_sampler_id": 0}
    seen = kept.ok("retrieve_futures", {"target": target, "prev_cursor": 0})
    fetched, announced = (one["request_id"] for one in seen["completions"])
    kept.ok(
        "retrieve_futures", {"target": target, "prev_cursor": 1, "retrieved_request_ids": [fetched]}
    )
    again = restart(kept, make_api)
    third = again.sample(sampler, 2)
    again.wait(third)
    after = again.ok("retrieve_futures", {"target": target, "prev_cursor": seen["cursor"]})
    assert [one["request_id"] for one in after["completions"]] == [announced, third["request_id"]]
    body = {"target": target, "prev_cursor": after["cursor"], "timeout": 0.0}
    assert again.ok("retrieve_futures", body) == {"completions": [], "cursor": after["cursor"]}


def test_a_failed_creation_stays_failed(kept: Api, make_api: MakeApi) -> None:
    """A run whose creation failed reports the failure after a kill, too."""
    session = kept.session()
    load = {
        "session_id": session,
        "model_seq_id": 0,
        "path": "tinker://nobody/weights/none",
        "optimizer": False,
    }
    future = kept.ok("load_weights", load)
    text = kept.failure(future)
    again = restart(kept, make_api)
    assert again.failure(future) == text
    step = again.step(f"{session}:train:0", 1)
    again.wait(step)
    assert "was not created" in again.failure(step)[1]


def test_a_project_stays(kept: Api, make_api: MakeApi) -> None:
    """A session keeps its project after a kill."""
    session = kept.session()
    kept.ok("set_session_project", {"project_id": "mine"}, session_id=session)
    again = restart(kept, make_api)
    (found,) = again.ok(
        "search_sessions", {"limit": 5, "project_ids": ["mine"], "user_metadata": {}}
    )["sessions"]
    assert found["session_id"] == session


def test_an_ended_session_leaves_nothing(kept: Api, make_api: MakeApi) -> None:
    """The journal and the folder of runs are empty after the last session has ended."""
    session = kept.session()
    model = kept.model(session)
    train(kept, model, 1, 1)
    done(kept, kept.sample(kept.sampler(session)))
    journal = kept.state.journal
    assert journal.read(REQUESTS)
    assert journal.read(RESULTS)
    late = kept.step(model, 9)  # waits for numbers that never come
    kept.finish(session)
    kept.wait(late)
    assert [journal.read(REQUESTS), journal.read(RESULTS), journal.read(RUNS)] == [[], [], []]


def test_requests_before_a_step_are_forgotten(kept: Api) -> None:
    """The journal does not grow with the steps of a run: gradients are dropped once the step after
    them is stored.
    """
    model = kept.model()
    journal = kept.state.journal
    train(kept, model, 1, 3)
    before = len(journal.read(REQUESTS))
    train(kept, model, 7, 30)
    # one may be written down after its step was done
    assert len(journal.read(REQUESTS)) <= before + 1


def test_tokens_of_clients_are_valid_after_a_kill(kept: Api, make_api: MakeApi) -> None:
    """Tokens that the server signed before a kill are valid afterwards."""
    token = kept.state.signer.sign({"sub": "me"}, 60)
    assert restart(kept, make_api).state.signer.read(token)["sub"] == "me"


def test_a_server_that_is_stopped_fails_nothing(kept: Api) -> None:
    """A request that waits while the server stops is answered with 503, so that its client retries
    on the next server.
    """
    model = kept.model()
    late = kept.step(model, 2)  # waits for number 1
    kept.state.begin_close()
    assert kept.retrieve(late).status_code == 503


def test_one_server_for_each_folder(tmp_path: Path) -> None:
    """A second server on the same folder is refused in one sentence; a killed one does not block
    it.
    """
    first = Journal(tmp_path)
    with pytest.raises(JournalInUseError, match="another server keeps its runs in"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


OLDER = """
create table meta (name text primary key, value blob not null);
create table requests (
    position integer primary key, subject text not null, operation text not null, path blob not null,
    content_type text not null, content blob not null, created_at real not null, request_id text unique, number integer);
create table results (
    request_id text primary key, fingerprint blob not null, kind text not null, content blob not null, completion integer);
create table audit (position integer primary key, kind text not null, content blob not null);
insert into meta values ('secret', x'01');
insert into requests values (1, 's', 'optim_step', x'7B7D', '', x'', 1.0, 'a', 3), (2, 's', 'forward', x'7B7D', '', x'', 2.0, 'b', 4);
insert into results values ('a', x'02', 'failure', x'5B2278222C2275736572225D', 7);
insert into audit values (1, 'projects', x'7B7D');
"""


def test_a_journal_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """A server reads the journal of an earlier version, and continues to write to it."""
    (tmp_path / ".journal").mkdir()
    with contextlib.closing(sqlite3.connect(tmp_path / ".journal" / "journal.sqlite")) as database:
        database.executescript(OLDER)
    journal = Journal(tmp_path)
    requests = journal.read(REQUESTS)
    assert [(one.request_id, one.number, one.known_failure) for one in requests] == [
        ("a", 3, None),
        ("b", 4, None),
    ]
    journal.add_request(msgspec.structs.replace(requests[0], request_id="c", known_failure=2))
    journal.add_request(requests[0])
    assert [one.request_id for one in journal.read(REQUESTS)] == ["a", "b", "c"]
    assert [(one.is_failure, one.outcome) for one in journal.read(RESULTS)] == [
        (True, RequestFailure("x", "user"))
    ]
    assert journal.secret() == b"\x01"
    journal.close()


@pytest.mark.parametrize("profile", ["minimal-json", "strict", "plain-json"])
def test_with_every_profile_that_keeps_numbers(make_api: MakeApi, profile: str) -> None:
    """Recovery works with every profile whose requests have numbers."""
    api = make_api(durability="step", profile=profile)
    model = api.model()
    train(api, model, 1, 2)
    train(restart(api, make_api, profile=profile), model, 5, 1)


def test_not_where_requests_have_no_numbers() -> None:
    """Durability `step` is refused where requests have no numbers: only numbers identify a repeated
    request.
    """
    with pytest.raises(
        ValueError, match="known by their client's numbers, and the profile 'skyrl' has none"
    ):
        Settings(durability="step", profile="skyrl")


def test_usage_and_audit_go_on(kept: Api, make_api: MakeApi) -> None:
    """Tokens, checkpoints and actions are counted once each, even if a gradient is
    computed again.
    """
    model = kept.model()
    train(kept, model, 1, 2)
    done(kept, kept.loss(model, 5))
    sampler = kept.sampler(model.partition(":")[0])
    done(kept, kept.sample(sampler, 0))
    done(kept, kept.save(model, 6, "a"))
    done(kept, kept.save(model, 7, "b"))
    kept.ok("delete_checkpoint", training_run_id=model, checkpoint_id="weights/b")
    before = kept.shared.usage.totals(), kept.ok("get_audit_log")
    assert before[0]["training", "tinker/toy"] == 6
    assert len(before[1]["entries"]) == 3
    again = restart(kept, make_api)
    done(again, again.loss(model, 8))
    again = restart(again, make_api)
    totals = again.shared.usage.totals()
    assert totals.pop(("training", "tinker/toy")) == 8
    assert totals == {key: count for key, count in before[0].items() if key[0] != "training"}
    assert again.ok("get_audit_log") == before[1]
    assert [one.nbytes > 0 for one in again.shared.usage._deleted] == [True]


def overview(api: Api, run: str) -> Any:
    return api.runner.run(api.client.get("/overview", params={"run": run})).json()


def test_curves_go_on(kept: Api, make_api: MakeApi) -> None:
    """The page shows every step of a run, before and after the kill, and counts a gradient computed
    twice once.
    """
    model = kept.model()
    train(kept, model, 1, 2)
    done(kept, kept.loss(model, 5))
    before = overview(kept, model)
    again = restart(kept, make_api)
    assert overview(again, model)["curves"] == before["curves"]
    done(again, again.step(model, 6, learning_rate=RATE))
    after = overview(again, model)["curves"]
    assert [step for step, _ in after["loss:sum"]] == [1, 2, 3]
    assert abs(after["loss:sum"][2][1] / after["loss:sum"][1][1] - 1) < 0.1  # not twice as much
    assert after["loss:sum"][:2] == before["curves"]["loss:sum"]


def test_curves_of_runs_that_ended_are_still_shown(kept: Api, make_api: MakeApi) -> None:
    """A run whose client left before the server stopped keeps its row and its curves while it is
    among the newest.
    """
    model = kept.model()
    train(kept, model, 1, 2)
    curves = overview(kept, model)["curves"]
    kept.finish(model.partition(":")[0])
    again = restart(kept, make_api)
    facts = overview(again, model)
    assert facts["curves"] == curves
    assert [(one["id"], one["steps"], one["state"], one["reason"]) for one in facts["runs"]] == [
        (model, 2, "ended", "ended before the server was started again")
    ]


def test_only_the_newest_former_runs_are_kept(
    kept: Api, make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest former runs are kept, in the file too; runs with live clients
    do not count.
    """
    monkeypatch.setattr("tinker.local.storage.records.MAX_FORMER_RUNS", 1)
    runs = [kept.model() for _ in range(3)]
    for run in runs:
        train(kept, run, 1, 1)
        kept.report(run, {"step": 1, "reward": 0.5})
    for run in runs[1:]:
        kept.finish(run.partition(":")[0])
    again = restart(kept, make_api)
    assert [one.model_id for one in again.shared.former_runs] == runs[2:]
    assert [bool(overview(again, run)["curves"]) for run in runs] == [True, False, True]
    assert [len(again.state.journal.read(table)) for table in RUN_TABLES] == [2, 2, 2]


def test_folders_of_no_run_are_removed(kept: Api, make_api: MakeApi) -> None:
    """Folders left by a server that was killed while it deleted a run are removed when the next
    server starts.
    """
    model = kept.model()
    train(kept, model, 1, 1)
    root = kept.state.settings.data_dir / ".journal"
    for name in ("runs", "snapshots"):
        (root / name / "of-no-run" / "1").mkdir(parents=True)
    again = restart(kept, make_api)
    assert len(list((root / "runs").iterdir())) == 1
    assert not list((root / "snapshots").iterdir())
    train(again, model, 3, 1)


def test_a_server_of_another_model_keeps_the_runs(
    kept: Api, make_api: MakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    """A run whose base model is not served is kept until a server serves it again."""
    model = kept.model()
    train(kept, model, 1, 2)
    wrong = restart(kept, make_api, ToyEngine(base_model="org/other"))
    assert "could not be repeated: base model 'tinker/toy' is not offered" in caplog.text
    again = restart(wrong, make_api)
    train(again, model, 5, 1)


def test_clients_that_never_come_back_are_forgotten(make_api: MakeApi) -> None:
    """After a restart a session without requests ends after its timeout, and frees its adapters and
    their folders.
    """
    clock = Clock()
    kept = make_api(durability="step", clock=clock)
    train(kept, kept.model(), 1, 1)
    again = restart(kept, make_api, clock=clock)
    engine = again.state.served.models[0].engine
    assert isinstance(engine, ToyEngine)
    assert len(engine._adapters) == 1
    clock.seconds += 601
    with again.state.lock():
        again.shared.store.end_idle()
    while engine._adapters:
        again.runner.run(again.state.run_in_engine("tinker/toy", lambda _: None))
    assert not list((again.state.settings.data_dir / ".journal" / "runs").iterdir())


def test_a_server_that_forgets_names_the_last_save(make_api: MakeApi) -> None:
    """Without durability `step`, the error about a run from before the restart says where it was
    saved last.
    """
    api = make_api()
    model = api.model()
    done(api, api.save(model, 1, "a"))
    waiting = api.save(model, 3, "b")  # for number 2
    again = make_api()
    expected = f"; its last save is tinker://{model}/weights/"
    assert expected in again.refused("optim_step", {"model_id": model, "seq_id": 3})[1]
    assert expected in again.retrieve(waiting).json()["detail"]


def test_results_come_also_when_they_cannot_be_kept(
    kept: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """A failing journal, as on a full disk, is logged as an error, and does not
    hold back results.
    """
    model = kept.model()
    late = kept.loss(model, 2)  # waits for number 1
    kept.state.journal.close()
    with kept.state.lock():
        kept.shared.store.model(model).queue.skip(1, kept.state.clock())
        kept.state.notify()
    assert "error" not in done(kept, late)
    assert "cannot write the journal" in caplog.text


def test_a_run_whose_weights_are_gone_refuses_at_once(kept: Api, make_api: MakeApi) -> None:
    """After a restart without its folder, a run refuses new and waiting requests at once, and none
    waits for its creation.
    """
    model = kept.model()
    train(kept, model, 1, 1)
    waiting = kept.loss(model, 4)  # for number 3
    shutil.rmtree(kept.state.settings.data_dir / ".journal" / "runs")
    again = restart(kept, make_api)
    assert again.refused("get_info", {"model_id": model})[0] == 400
    for future in (again.loss(model, 3), waiting):
        category, text = done(again, future)["category"], again.failure(future)[1]
        assert category == "user"
        assert "was not created: its weights are lost" in text


def test_an_unloaded_run_stays_closed(kept: Api, make_api: MakeApi) -> None:
    """Requests to a run that was unloaded before the server was killed are still refused."""
    model = kept.model()
    train(kept, model, 1, 1)
    kept.wait(kept.ok("unload_model", {"model_id": model}))
    body = {"model_id": model, "seq_id": 4, "adam_params": {}}
    before = kept.refused("optim_step", body)
    again = restart(kept, make_api)
    assert again.refused("optim_step", body) == before


# The file of the journal


class Row(msgspec.Struct, array_like=True):
    name: str
    value: int


THINGS = Table("things", Row, "name")


def test_a_row_replaces_that_of_its_key(tmp_path: Path) -> None:
    """Two rows with one key are one row, the later one."""
    journal = Journal(tmp_path)
    journal.add_tables(THINGS)
    journal.note(THINGS.add(Row("a", 1)), THINGS.add(Row("a", 2)))
    journal.flush()
    assert journal.read(THINGS) == [Row("a", 2)]
    journal.close()


def test_what_a_failed_write_held_back_is_written_once(tmp_path: Path) -> None:
    """Rows that could not be written are written with the next ones; deleted later, they do not
    come back.
    """
    journal = Journal(tmp_path)
    journal.note(THINGS.add(Row("a", 1)))
    journal.flush()  # there is no such table
    journal.add_tables(THINGS)
    names: list[list[str]] = []
    for statement in (
        THINGS.add(Row("b", 1)),
        THINGS.delete("name = ?", "a"),
        THINGS.add(Row("c", 1)),
    ):
        journal.note(statement)
        journal.flush()
        names.append([row.name for row in journal.read(THINGS)])
    assert names == [["a", "b"], ["b"], ["b", "c"]]
    journal.close()
