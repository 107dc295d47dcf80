"""Checkpoints, from the save to the deletion, and adapters that are uploaded."""

from __future__ import annotations

import datetime
from functools import partial

import msgspec
from tinker_wire import models
from tinker_wire.api import weights as api
from tinker_wire.runtime import Request

from tinker._http.retry import ABSENT_STATUSES
from tinker.testing.conformance import check
from tinker.testing.conformance.connection import checkpoint_parts
from tinker.testing.conformance.context import (
    ADAM,
    LORA,
    ONE,
    PROMPT_DATUM,
    CheckContext,
    Floats,
    SamplingFixture,
    TrainingFixture,
    are_near,
    distance,
    effect,
    fresh_name,
    in_utc,
)
from tinker.testing.conformance.outcome import Absent, Contradiction, Failed, Refused, optional

_weights_check = partial(check, theme="weights")


_LISTS = "lists"
_NOT_LISTED = (_LISTS, "list_checkpoints")
_INFLIGHT_TRIES, _INFLIGHT_PAUSE = 50, 0.2


@_weights_check("save_weights", core=True, basis=True)
def save(context: CheckContext) -> None:
    """A save returns a path that consists of the run, the kind and the name."""
    fixture, name = context.borrow(), fresh_name()
    path, wanted = fixture.save_and_wait(name), f"tinker://{fixture.model_id}/weights/{name}"
    context.expect(
        path == wanted, f"the path is {path!r}, not {wanted!r}", "made names", "save_weights"
    )


@_weights_check("save_weights")
def name_conflict(context: CheckContext) -> None:
    """A name that exists is refused with 409, unless overwriting is allowed."""
    fixture, name = context.borrow(), fresh_name()
    first = fixture.save_and_wait(name)
    try:
        context.wait_for_response(fixture.save(name))
    except Refused as error:
        context.expect(
            error.status == 409,
            f"a name that exists is refused with {error.status}, not 409",
            "statuses",
        )
    except Failed as error:
        context.note_difference(f"a name that exists is accepted, and the request fails: {error}")
    else:
        how = "a save under a name that exists was done, and nobody asked to overwrite"
        raise Contradiction(how, cause="already so", operation="save_weights")
    try:
        again = fixture.save_and_wait(name, overwrite=True)
    except (Refused, Failed) as error:
        context.note_difference(f"a checkpoint cannot be overwritten: {error}")
    else:
        context.require(again == first, f"overwritten, {first} is {again}")


@_weights_check("save_weights", "list_checkpoints")
def keep_last(context: CheckContext) -> None:
    """`keep_last`, an extension, deletes the oldest checkpoints of the run."""
    fixture = context.create()
    first = fixture.save_and_wait()
    with optional():
        last = fixture.save_and_wait(keep_last=1)
    left = {one.tinker_path for one in _list(context, fixture.model_id)}
    if first in left:
        raise Absent("keep_last is ignored")
    context.require(bool(left), f"{last} was saved, and its run lists nothing", *_NOT_LISTED)
    context.require(
        left == {last}, f"after a save that keeps one, {sorted(left)} are left, not {last}"
    )


@_weights_check("weights_info", core=True)
def info(context: CheckContext) -> None:
    """A checkpoint reports what it was created from."""
    found = context.call(_info(context.borrow().save_and_wait()))
    base_model = context.base_model()
    context.require(
        found.base_model == base_model, f"made from {base_model!r}, it says {found.base_model!r}"
    )
    context.require(
        found.is_lora and found.lora_rank in (8, None),
        f"made with rank 8, it says {found.lora_rank}",
    )


@_weights_check("list_checkpoints", core=True)
def of_run(context: CheckContext) -> None:
    """The checkpoints of a run are listed, each with its kind, path and time."""
    fixture, name = context.create(), fresh_name()
    path = fixture.save_and_wait(name, user_metadata={"k": "v"})
    fixture.save_for_sampler(path=name)
    listed = _list(context, fixture.model_id)
    context.require(
        len(listed) == 2,
        f"two checkpoints were saved, and their run lists {len(listed)}",
        *_NOT_LISTED,
    )
    kinds = sorted((one.checkpoint_type, one.checkpoint_id) for one in listed)
    wanted = [("sampler", f"sampler_weights/{name}"), ("training", f"weights/{name}")]
    context.expect(
        kinds == wanted, f"listed are {kinds}, not {wanted}", "made names", "list_checkpoints"
    )
    saved = _find_listed(context, fixture.model_id, path)
    told = f"saved with user_metadata, it is listed with {saved.user_metadata}"
    context.require(
        saved.user_metadata == {"k": "v"}, told, "lost metadata", "list_checkpoints", "Checkpoint"
    )
    context.expect(
        not saved.public and saved.expires_at is None,
        "a plain checkpoint is private and never expires",
    )


@_weights_check("list_user_checkpoints")
def of_user(context: CheckContext) -> None:
    """The checkpoints of all runs are listed newest first, with a cursor that counts them."""
    fixture = context.create()
    older, newer = fixture.save_and_wait(), fixture.save_and_wait()
    page = context.call(api.list_user_checkpoints(limit=2))
    found = [one.tinker_path for one in page.checkpoints]
    told = f"the newest two are {[newer, older]}, listed are {found}"
    context.require(newer in found, told, _LISTS, "list_user_checkpoints")
    context.require(found == [newer, older], told)
    rest = context.call(api.list_user_checkpoints(limit=1, offset=1))
    second = [one.tinker_path for one in rest.checkpoints]
    context.require(
        second == [older], "the second page of one does not contain the second checkpoint"
    )
    is_counted = rest.cursor is not None and rest.cursor.total_count >= 2
    context.require(is_counted, f"the cursor of the second page of one is {rest.cursor}")


@_weights_check("search_checkpoints")
def search(context: CheckContext) -> None:
    """A search returns the checkpoints that match its conditions, newest first, with a cursor to
    the next ones.
    """
    fixture, tag = context.create(), {"conformance": fresh_name()}
    older, newer = (fixture.save_and_wait(user_metadata=tag) for _ in range(2))
    fixture.save_and_wait()
    request = models.CheckpointSearchRequest(
        user_metadata=tag, base_models=[context.base_model()], limit=1
    )
    page = context.call(api.search_checkpoints(request))
    found = [one.tinker_path for one in page.checkpoints]
    context.require(
        found == [newer], f"the newest that meets the conditions is {newer}, found are {found}"
    )
    context.require(
        page.next_cursor is not None,
        "two meet the conditions, and after the first there is no cursor",
    )
    last = context.call(
        api.search_checkpoints(msgspec.structs.replace(request, cursor=page.next_cursor))
    )
    found = [one.tinker_path for one in last.checkpoints]
    context.require(
        found == [older], f"the next that meets the conditions is {older}, found are {found}"
    )
    context.expect(
        last.next_cursor is None, f"after the last page there is a cursor {last.next_cursor}"
    )
    others = (
        msgspec.structs.replace(request, checkpoint_type="sampler"),
        msgspec.structs.replace(request, base_models=[]),
    )
    for request in others:
        found = [
            one.tinker_path for one in context.call(api.search_checkpoints(request)).checkpoints
        ]
        context.expect(
            not found, f"with conditions that no checkpoint meets the search finds {found}"
        )


@_weights_check("load_weights", basis=True)
def load(context: CheckContext) -> None:
    """A new model that loads a checkpoint has the saved logprobs."""
    path, wanted = _train(context.create())
    fixture = context.create(1)
    context.result(fixture.load(path))
    _require_loaded(context, fixture, wanted)


@_weights_check("load_weights")
def resume(context: CheckContext) -> None:
    """A model can be created by loading a checkpoint, under the id that a client computes; its
    first request has number 1.
    """
    context.need("weights.load")
    path, wanted = _train(context.create())
    session, number = context.session(), context.number(7)
    model_id = f"{session}:train:{number}"
    body = models.LoadWeightsRequest(session_id=session, model_seq_id=number, path=path)
    with optional(Refused):
        answer = context.run(api.load_weights(body), models.LoadWeightsResponse)
    told = f"the model id is {answer.model_id!r}, not {model_id!r}"
    context.expect(answer.model_id in (model_id, None), told, "made names", "load_weights")
    _require_loaded(context, context.adopt(answer.model_id or model_id), wanted)


@_weights_check("load_weights")
def optimizer_state(context: CheckContext) -> None:
    """With the optimizer state, a loaded model takes the same step as the saved one; without it, a
    different one.
    """
    context.need("weights.load")
    original = context.create()
    original.learn(params=ADAM)
    original.learn([ONE], ADAM)
    path = original.save_and_wait()
    saved = original.logprobs()
    original.learn([ONE], ADAM)
    wanted = original.logprobs()
    moved = effect(saved, wanted)
    restored, fresh = (
        _next_step(context, number, path, optimizer=number == 1) for number in (1, 2)
    )
    away, away_fresh = distance(wanted, restored), distance(wanted, fresh)
    context.require(
        are_near(wanted, restored, moved),
        f"with the optimizer state the next step is {away:g} away",
    )
    context.require(away_fresh > away, "without the optimizer state the next step is the same")


def _next_step(context: CheckContext, number: int, path: str, *, optimizer: bool) -> Floats:
    fixture = context.create(number)
    context.result(fixture.load(path, optimizer=optimizer))
    fixture.learn([ONE], ADAM)
    return fixture.logprobs()


@_weights_check("load_weights")
def missing(context: CheckContext) -> None:
    """Loading an unknown checkpoint fails with the category `user`."""
    fixture = context.create()
    try:
        context.wait_for_response(
            fixture.load(f"tinker://{fixture.model_id}/weights/no-such-checkpoint")
        )
    except Refused as error:
        context.expect(
            error.status in (400, 404),
            f"an unknown checkpoint is refused with {error.status}",
            "statuses",
        )
    except Failed as error:
        told = f"an unknown checkpoint fails with category {error.category!r}, not 'user'"
        context.expect(error.category not in ("server", "unknown"), told, "failure as status")
    except Absent:  # a 404 is a refusal here: the operation is there, as other checks see
        pass
    else:
        raise Contradiction("a checkpoint that was never saved was loaded")


@_weights_check("save_weights_for_sampler", core=True, basis=True)
def sampler_name(context: CheckContext) -> None:
    """Weights saved under a name can be sampled from, and are the trained weights."""
    fixture, name = context.create(), fresh_name()
    fixture.learn()
    saved = fixture.save_for_sampler(path=name)
    wanted = f"tinker://{fixture.model_id}/sampler_weights/{name}"
    told = f"the path is {saved.path!r}, not {wanted!r}"
    context.expect(saved.path == wanted, told, "made names", "save_weights_for_sampler")
    apart = distance(
        fixture.logprobs([PROMPT_DATUM]), context.sampler(5, model_path=saved.path).scores()
    )
    context.require(
        apart <= 0.1, f"training and sampling are {apart:g} apart about the prompt's logprobs"
    )


@_weights_check("save_weights_for_sampler", core=True)
def sampler_without_name(context: CheckContext) -> None:
    """Weights can be saved directly into a sampling session, and do not change when training
    continues.
    """
    fixture = context.create()
    saved = fixture.save_for_sampler(sampling_session_seq_id=context.number(5))
    context.expect(saved.path is None, f"an unnamed save answers the path {saved.path!r}")
    sampler = SamplingFixture(context, str(saved.sampling_session_id))
    before = sampler.scores()
    fixture.learn()
    context.require(
        distance(before, sampler.scores()) <= 1e-3, "a snapshot changes when training continues"
    )


@_weights_check("save_weights_for_sampler")
def inflight(context: CheckContext) -> None:
    """Inflight weights follow the later inflight saves of their model."""
    context.need("weights.sampler_name")
    fixture = context.create()
    saved = fixture.save_for_sampler(sampling_session_seq_id=context.number(5), kind="inflight")
    sampler = SamplingFixture(context, str(saved.sampling_session_id))
    before = sampler.scores()
    fixture.learn()
    fixture.save_for_sampler(sampling_session_seq_id=context.number(6), kind="inflight")
    for _ in range(_INFLIGHT_TRIES):  # the weights arrive some time after the save
        if distance(before, sampler.scores()) > 1e-5:
            return
        context.deadline.pause(_INFLIGHT_PAUSE, "the new weights in the older inflight session")
    waited = _INFLIGHT_TRIES * _INFLIGHT_PAUSE
    context.note_difference(
        f"`kind` inflight is ignored: {waited:.0f} s after a save the older session "
        "has its old weights"
    )


@_weights_check("delete_checkpoint", core=True)
def delete(context: CheckContext) -> None:
    """A deleted checkpoint cannot be found; deleting it again is refused with 404, and a bare name
    with 400.
    """
    fixture, name = context.create(), fresh_name()
    path = fixture.save_and_wait(name)
    request = api.delete_checkpoint(**checkpoint_parts(path))
    context.call(request)
    context.expect_refusal(request, 404)
    context.expect_refusal(_info(path), 404)
    again = fixture.save_and_wait(name)
    bare = api.delete_checkpoint(
        training_run_id=fixture.model_id, checkpoint_id=again.rpartition("/")[2]
    )
    context.expect_refusal(bare, 400, 404)
    context.require(
        context.send(_info(again)).status < 300, "deleting by a bare name took a checkpoint away"
    )


@_weights_check("publish_checkpoint", "unpublish_checkpoint")
def publish(context: CheckContext) -> None:
    """A checkpoint can be published and unpublished; repeating either is refused with 409."""
    fixture = context.create()
    path = fixture.save_and_wait()
    parts = checkpoint_parts(path)
    for request, public in (
        (api.publish_checkpoint(**parts), True),
        (api.unpublish_checkpoint(**parts), False),
    ):
        context.call(request)
        found = _find_listed(context, fixture.model_id, path).public
        context.require(
            found is public,
            f"after {request.operation} the checkpoint is listed with public={found}",
        )
        context.expect_refusal(request, 409, cause="already so")


@_weights_check("set_checkpoint_ttl")
def time_to_live(context: CheckContext) -> None:
    """A checkpoint expires after the time that is set at its save or later, and stays if the time
    is removed.
    """
    fixture = context.create()
    path = fixture.save_and_wait(ttl_seconds=7200)
    parts = checkpoint_parts(path)
    left = _hours_left(_find_listed(context, fixture.model_id, path))
    told = (
        f"saved with `ttl_seconds` of two hours, it has {left} hours to live"
        if left
        else "`ttl_seconds` of a save is ignored"
    )
    context.require(left == 2, told, operation="save_weights")
    for seconds, hours in ((3600, 1), (None, None)):
        context.call(
            api.set_checkpoint_ttl(models.SetCheckpointTtlRequest(ttl_seconds=seconds), **parts)
        )
        left = _hours_left(_find_listed(context, fixture.model_id, path))
        context.require(left == hours, f"told to live for {seconds} seconds, it has {left} hours")


@_weights_check("save_weights_external", "get_external_weights_urls")
def external(context: CheckContext) -> None:
    """Weights can be saved as files, whose URLs need no credential."""
    fixture = context.create()
    saved = fixture.export()
    wanted = f"tinker://{fixture.model_id}/external_weights/{saved.rpartition('/')[2]}"
    context.expect(
        saved == wanted,
        f"the path is {saved!r}, not {wanted!r}",
        "made names",
        "save_weights_external",
    )
    answer = context.call(api.get_external_weights_urls(**checkpoint_parts(saved)))
    context.require(bool(answer.urls), "there are no files")
    context.expect(
        in_utc(answer.expires) > datetime.datetime.now(datetime.UTC),
        f"the URLs ended at {answer.expires}",
    )
    for name, url in answer.urls.items():
        file = context.connection.fetch(url, context.deadline)
        context.require(
            file.status == 200 and bool(file.content), f"the file {name} answers {file.status}"
        )


@_weights_check("get_checkpoint_archive")
def archive(context: CheckContext) -> None:
    """A checkpoint can be downloaded as one archive, from a URL that needs no credential."""
    fixture = context.create()
    path = fixture.save_for_sampler(path=fresh_name()).path
    request = api.get_checkpoint_archive(**checkpoint_parts(str(path), "weights.sampler_name"))
    answer = context.send(request, headers={"Accept": "application/gzip"})
    if answer.status in ABSENT_STATUSES:
        raise Absent(str(answer))
    url = (
        answer.headers.get("location")
        if answer.status == 302
        else context.decode_accepted(request, answer).url
    )
    told = (
        f"the URL of the archive begins with {str(url).partition('//')[0]}//, which only works on "
        "the server's machine"
    )
    context.require(str(url).startswith(("http://", "https://")), told)
    file = context.connection.fetch(str(url), context.deadline)
    context.require(file.status == 200 and bool(file.content), f"the archive answers {file.status}")


@_weights_check("copy_weights")
def copy(context: CheckContext) -> None:
    """A checkpoint can be copied into a run of its own, with the same weights."""
    path = context.create().save_and_wait()
    body = models.CopyWeightsRequest(source_path=path, destination_project_id=fresh_name())
    with optional(Refused, Absent, about="not into a project of any name"):
        made = context.cleanup.add(context.call(api.copy_weights(body)).tinker_path)
    context.require(made != path and made.rpartition("/")[2] != "", f"the copy of {path} is {made}")
    context.expect(
        context.call(_info(made)) == context.call(_info(path)),
        "the copy was made from something else",
    )


# -------------------------------------------------------------------------------------------- parts


def _info(path: str) -> Request[models.WeightsInfoResponse]:
    return api.weights_info(models.WeightsInfoRequest(tinker_path=path))


def _train(fixture: TrainingFixture) -> tuple[str, Floats]:
    """Train the model and save it; return the path and its logprobs."""
    fixture.context.need("training.forward_only")
    fixture.learn()
    return fixture.save_and_wait(), fixture.logprobs()


def _require_loaded(context: CheckContext, fixture: TrainingFixture, wanted: Floats) -> None:
    """Raise Contradiction unless the model has the logprobs of the one that was
    trained and saved.
    """
    found = fixture.logprobs()
    near = are_near(wanted, found, effect(context.create(99).logprobs(), wanted))
    context.require(
        near,
        f"the loaded model's logprobs are {distance(wanted, found):g} away from the saved ones",
    )


def _list(context: CheckContext, run: str) -> list[models.Checkpoint]:
    return context.call(api.list_checkpoints(training_run_id=run)).checkpoints


def _find_listed(context: CheckContext, run: str, path: str) -> models.Checkpoint:
    """Return a checkpoint as its run lists it. Contradiction unless it is listed."""
    listed = {one.tinker_path: one for one in _list(context, run)}
    context.require(
        path in listed, f"{path} was saved, and its run lists {sorted(listed)}", *_NOT_LISTED
    )
    return listed[path]


def _hours_left(checkpoint: models.Checkpoint) -> int | None:
    if checkpoint.expires_at is None:
        return None
    left = in_utc(checkpoint.expires_at) - datetime.datetime.now(datetime.UTC)
    return round(left.total_seconds() / 3600)


_uploads_check = partial(check, theme="uploads")


@_uploads_check("external_weights_upload_start", "external_weights_upload_finish")
def incomplete(context: CheckContext) -> None:
    """An upload has a URL for each file of its adapter, and cannot be finished before the files
    arrive.
    """
    upload = _start(context)
    context.require(bool(upload.urls), "an upload has no URLs")
    context.expect(
        in_utc(upload.expires) > datetime.datetime.now(datetime.UTC),
        f"the URLs ended at {upload.expires}",
    )
    context.expect_refusal(_finish(upload), 400)


@_uploads_check("external_weights_upload_finish")
def unknown(context: CheckContext) -> None:
    """Finishing an unknown upload is refused with 404."""
    _start(context)
    body = models.ExternalWeightsUploadFinishRequest(upload_id=fresh_name())
    context.expect_refusal(api.external_weights_upload_finish(body), 404)


@_uploads_check("external_weights_upload_start", "external_weights_upload_finish")
def adapter(context: CheckContext) -> None:
    """An adapter that was saved as files and is uploaded again becomes a checkpoint with the saved
    logprobs.
    """
    context.need("weights.load")
    upload = _start(context)
    fixture = context.create()
    before = fixture.logprobs()
    fixture.learn()
    wanted = fixture.logprobs()
    _send(context, upload, _export(context, fixture))
    path, again = (context.cleanup.add(context.call(_finish(upload)).tinker_path) for _ in range(2))
    context.expect(path == again, f"finished again, {path} is {again}")
    other = context.create(1)
    context.result(other.load(path))
    found = other.logprobs()
    context.require(
        are_near(wanted, found, effect(before, wanted)),
        f"the logprobs are {distance(wanted, found):g} away",
    )


# -------------------------------------------------------------------------------------------- parts


def _start(context: CheckContext) -> models.ExternalWeightsUploadStartResult:
    body = models.ExternalWeightsUploadStartRequest(
        base_model=context.base_model(), lora_config=LORA
    )
    return context.call(api.external_weights_upload_start(body))


def _finish(
    upload: models.ExternalWeightsUploadStartResult,
) -> Request[models.ExternalWeightsUploadFinishResult]:
    return api.external_weights_upload_finish(
        models.ExternalWeightsUploadFinishRequest(upload_id=upload.upload_id)
    )


def _export(context: CheckContext, fixture: TrainingFixture) -> dict[str, bytes]:
    """Return the files of a model's adapter, by name."""
    urls = context.call(api.get_external_weights_urls(**checkpoint_parts(fixture.export()))).urls
    return {
        name: context.connection.fetch(url, context.deadline).content for name, url in urls.items()
    }


def _send(
    context: CheckContext, upload: models.ExternalWeightsUploadStartResult, files: dict[str, bytes]
) -> None:
    """Send every file that the upload has a URL for."""
    lost = sorted(upload.urls.keys() - files.keys())
    context.require(
        not lost,
        f"an upload wants {', '.join(lost)}, which the adapter that was saved as "
        "files does not have",
    )
    for name, url in upload.urls.items():
        answer = context.connection.fetch(url, context.deadline, files[name])
        context.require(
            answer.status < 300, f"the file {name} is sent, and its URL answers {answer.status}"
        )
