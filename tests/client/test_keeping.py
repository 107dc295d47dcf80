"""Stored objects, seen through the REST and admin clients of our own server: runs, checkpoints,
sessions, billing.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest
from tinker_wire import models

import tinker
from tinker import types

MakeDatum = Callable[..., tinker.Datum]
Connect = Callable[..., tinker.ServiceClient]


@pytest.fixture
def service(connect: Connect) -> tinker.ServiceClient:
    """Return a service client with a project, metadata and a display name."""
    return connect(user_metadata={"team": "red"}, display_name="nightly", project_id="proj-1")


@pytest.fixture
def rest(service: tinker.ServiceClient) -> tinker.RestClient:
    """Return the REST client of the service."""
    return service.create_rest_client()


def test_life_of_a_checkpoint(rest: tinker.RestClient, training: tinker.TrainingClient) -> None:
    """A checkpoint is listed, published, given an expiry and deleted; twice is an error."""
    path = training.save_state("one", user_metadata={"step": "1"}).result(10).path
    parsed = tinker.ParsedCheckpointTinkerPath.from_tinker_path(path)
    (listed,) = rest.list_checkpoints(training.model_id).result(10).checkpoints
    assert isinstance(listed, tinker.Checkpoint)
    assert (listed.tinker_path, listed.checkpoint_id, listed.checkpoint_type) == (
        path,
        "weights/one",
        "training",
    )
    assert (listed.public, listed.user_metadata, listed.expires_at) == (False, {"step": "1"}, None)
    info = rest.get_weights_info_by_tinker_path(path).result(10)
    assert (info.base_model, info.lora_rank, info.is_lora) == ("tinker/toy", 4, True)
    assert isinstance(info.optimizer_config, types.AdamOptimizerConfig)

    rest.publish_checkpoint_from_tinker_path(path).result(10)
    assert rest.list_user_checkpoints().result(10).checkpoints[0].public
    with pytest.raises(tinker.ConflictError):
        rest.publish_checkpoint_from_tinker_path(path).result(10)
    rest.unpublish_checkpoint_from_tinker_path(path).result(10)
    with pytest.raises(tinker.ConflictError):
        rest.unpublish_checkpoint_from_tinker_path(path).result(10)

    rest.set_checkpoint_ttl_from_tinker_path(path, 7200).result(10)
    expiring = rest.list_checkpoints(training.model_id).result(10).checkpoints[0].expires_at
    assert isinstance(expiring, datetime.datetime)
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result(10)
    assert rest.list_checkpoints(training.model_id).result(10).checkpoints[0].expires_at is None

    assert rest.delete_checkpoint(parsed.training_run_id, parsed.checkpoint_id).result(10) is None
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result(10)


def test_runs_and_pages(
    rest: tinker.RestClient, service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Runs are listed in pages, found by id and by path, and report their last checkpoints."""
    other = service.create_lora_training_client("tinker/toy", rank=2).result(10)
    path = training.save_state("one").result(10).path
    first = rest.list_training_runs(limit=1).result(10)
    second = rest.list_training_runs(limit=1, offset=1, project_id="proj-1").result(10)
    found = {page.training_runs[0].training_run_id for page in (first, second)}
    assert found == {training.model_id, other.model_id}
    assert (first.cursor.total_count, second.cursor.offset) == (2, 1)
    run = rest.get_training_run(training.model_id).result(10)
    assert isinstance(run, tinker.TrainingRun)
    assert run.last_checkpoint is not None
    assert run.last_checkpoint.tinker_path == path
    assert (
        rest.get_training_run_by_tinker_path(path, "accessible").result(10).training_run_id
        == run.training_run_id
    )
    assert rest.list_training_runs(project_id="another").result(10).training_runs == []
    with pytest.raises(tinker.NotFoundError):
        rest.get_training_run("nothing").result(10)


def test_copies(
    rest: tinker.RestClient, service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """A copy is a separate checkpoint, in the client's project or in the given one."""
    path = training.save_weights_for_sampler("one").result(10).path
    own = service.copy_weights(path, ttl_seconds=3600).result(10)
    named = rest.copy_weights(path, "proj-2").result(10)
    assert len({path, own, named}) == 3
    copies = {one.tinker_path: one for one in rest.list_user_checkpoints().result(10).checkpoints}
    assert copies[own].expires_at is not None
    assert copies[named].expires_at is None
    usage = (
        tinker.AdminClient(service._runtime())
        .get_current_checkpoint_storage_usage("proj-2")
        .result(10)
    )
    assert [(item.project_id, item.checkpoint_count) for item in usage.data] == [("proj-2", 1)]
    sampler = service.create_sampling_client(model_path=named)
    prompt, params = tinker.ModelInput.from_ints([1]), tinker.SamplingParams(max_tokens=2)
    assert sampler.sample(prompt, 1, params).result(10).sequences


def test_files_to_download(rest: tinker.RestClient, training: tinker.TrainingClient) -> None:
    """An external save has signed URLs of its files, and sampler weights are one archive."""
    path = training.save_weights_external("out", 3600).result(10).path
    found = rest.get_external_weights_urls(path).result(10)
    assert all(url.startswith("http") for url in found.urls.values())
    assert len(found.urls) == 1
    assert found.expires.tzinfo is not None
    archive = rest.get_checkpoint_archive_url_from_tinker_path(
        training.save_weights_for_sampler("s").result(10).path
    )
    assert archive.result(10).url.startswith("http")
    with pytest.raises(tinker.NotFoundError):
        rest.get_external_weights_urls(path.replace("/out", "/in")).result(10)


@pytest.mark.filterwarnings("ignore::tinker.ExperimentalWarning")
def test_sessions(
    rest: tinker.RestClient, service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """A session is listed, described, searched for, moved, and has a trace."""
    session_id = service.get_console_url().rpartition("/")[2]
    assert session_id in rest.list_sessions().result(10).sessions
    session = rest.get_session(session_id).result(10)
    assert (session.training_run_ids, session.user_metadata, session.display_name) == (
        [training.model_id],
        {"team": "red"},
        "nightly",
    )
    search = types.SessionSearchRequest(
        user_metadata={"team": "red"}, statuses=[types.ActiveSessionStatusQuery()]
    )
    (summary,) = rest.search_sessions(search).result(10).sessions
    assert (summary.session_id, summary.project_id) == (session_id, "proj-1")
    assert isinstance(summary.status, types.SessionActive)
    assert (
        rest.search_sessions(search.model_copy(update={"display_name": "weekly"}))
        .result(10)
        .sessions
        == []
    )
    rest.assign_session_project(session_id, "proj-2").result(10)
    assert rest.search_sessions(search).result(10).sessions[0].project_id == "proj-2"
    assert rest.export_session_trace(session_id).result(10).startswith("http")
    with pytest.raises(tinker.NotFoundError):
        rest.export_session_trace("nothing").result(10)


def test_search_of_checkpoints(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Checkpoints are found by metadata and model, in pages; the caller's line is warned."""
    rest = service.create_rest_client()
    paths = [
        training.save_state(name, user_metadata={"team": "red"}).result(10).path
        for name in ("one", "two")
    ]
    training.save_state("three").result(10)
    request = types.CheckpointSearchRequest(
        user_metadata={"team": "red"}, base_models=["tinker/toy"], limit=1
    )
    with pytest.warns(tinker.ExperimentalWarning, match="search_checkpoints") as caught:
        first = rest.search_checkpoints(request).result(10)
    with pytest.warns(tinker.ExperimentalWarning):
        rest_of_it = rest.search_checkpoints(
            request.model_copy(update={"cursor": first.next_cursor})
        ).result(10)
    assert caught[0].filename == __file__
    assert [page.checkpoints[0].tinker_path for page in (first, rest_of_it)] == paths[::-1]
    assert (first.checkpoints[0].base_model, rest_of_it.next_cursor) == ("tinker/toy", None)


def test_audit_log_and_billing(
    service: tinker.ServiceClient, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """Actions are in the audit log, and usage is on the bill, per hour."""
    admin = tinker.AdminClient(service._runtime())
    path = training.save_state("one").result(10).path
    training.forward_backward([datum()], "cross_entropy").result(10)
    entries = admin.get_audit_log("checkpoints").result(10).entries
    assert path in {entry.tinker_path for entry in entries}
    assert admin.get_audit_log("all", datetime.date(2001, 1, 1)).result(10).entries == []
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    bill = admin.get_billing_usage(
        now - datetime.timedelta(hours=1), now + datetime.timedelta(hours=2)
    ).result(10)
    trained = [
        event for event in bill.data if isinstance(event.event_info, types.TrainingBillingEvent)
    ]
    assert sum(event.event_info.token_count for event in trained) == 3
    assert {event.session_id for event in trained} == set(bill.sessions)


@pytest.mark.parametrize(
    "settings", [{"client_config": models.ClientConfigResponse(pjwt_auth_enabled=True)}]
)
def test_whoami(rest: tinker.RestClient) -> None:
    """The token of a server that requires exchanged keys identifies the owner of the key."""
    who = rest.whoami().result(10)
    assert who.org_urn.startswith("tml:organization:")
    assert who.user_urn
