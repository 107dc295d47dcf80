"""Checkpoints: saved, found, loaded, sampled from, shared, downloaded, deleted."""

from __future__ import annotations

import datetime
import uuid

import numpy as np
from tinker_wire import models
from tinker_wire.api import weights as api
from tinker_wire.runtime import Request

from tinker.testing.conformance.bench import Bench, Promise
from tinker.testing.conformance.exchange import NOT_THERE
from tinker.testing.conformance.outcome import Absent, Contradiction, Failed, Refused
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.sampler import PROMPT, Sampler
from tinker.testing.conformance.trainee import ADAM, ONE, Floats, Trainee, alike, create, datum, distance, effect

_INFLIGHT_TRIES, _INFLIGHT_PAUSE = 50, 0.2


def _name() -> str:
    return f"conformance-{uuid.uuid4().hex[:8]}"


def _checkpoint(path: str) -> dict[str, str]:
    """The parts of a checkpoint's URL."""
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    return {"training_run_id": run, "checkpoint_id": checkpoint}


@check("save_weights", core=True)
def save(bench: Bench) -> None:
    """A save answers a path made of the run, the kind and the name."""
    trainee, name = create(bench), _name()
    path, wanted = trainee.saved(name), f"tinker://{trainee.model_id}/weights/{name}"
    bench.expect(path == wanted, f"the path is {path!r}, not {wanted!r}")


@check("save_weights")
def taken_name(bench: Bench) -> None:
    """A name that exists is refused with 409, unless it is to be overwritten."""
    trainee, name = create(bench), _name()
    first = trainee.saved(name)
    try:
        bench.outcome(trainee.save(name))
    except Refused as error:
        bench.expect(error.status == 409, f"a name that exists is refused with {error.status}, not 409")
    except Failed as error:
        bench.differs(f"a name that exists is accepted, and the request fails: {error}")
    else:
        raise Contradiction("a save under a name that exists was done, and nobody asked to overwrite")
    try:
        again = trainee.saved(name, overwrite=True)
    except (Refused, Failed) as error:
        bench.differs(f"a checkpoint cannot be overwritten: {error}")
    else:
        bench.require(again == first, f"overwritten, {first} is {again}")


@check("weights_info", core=True)
def info(bench: Bench) -> None:
    """A checkpoint says from what it was made."""
    found = bench.call(_info(create(bench).saved(_name())))
    bench.expect(found.base_model == bench.base_model(), f"made from {bench.base_model()!r}, it says {found.base_model!r}")
    bench.expect(found.is_lora and found.lora_rank in (8, None), f"made with rank 8, it says {found.lora_rank}")


@check("list_checkpoints", core=True)
def of_run(bench: Bench) -> None:
    """The checkpoints of a run are listed, each with its kind, its path and its time."""
    trainee, name = create(bench), _name()
    path = trainee.saved(name, user_metadata={"k": "v"})
    trainee.save_for_sampler(path=name)
    listed = bench.call(api.list_checkpoints(training_run_id=trainee.model_id)).checkpoints
    kinds = sorted((one.checkpoint_type, one.checkpoint_id) for one in listed)
    wanted = [("sampler", f"sampler_weights/{name}"), ("training", f"weights/{name}")]
    bench.expect(kinds == wanted, f"listed are {kinds}, not {wanted}")
    saved = [one for one in listed if one.tinker_path == path]
    bench.require(len(saved) == 1, f"{path} is listed {len(saved)} times")
    bench.expect(saved[0].user_metadata == {"k": "v"}, f"its metadata is {saved[0].user_metadata}")
    bench.expect(not saved[0].public and saved[0].expires_at is None, "a plain checkpoint is private and never expires")


@check("list_user_checkpoints")
def of_user(bench: Bench) -> None:
    """The checkpoints of all runs are listed newest first, with a cursor that counts them."""
    trainee = create(bench)
    older, newer = trainee.saved(_name()), trainee.saved(_name())
    page = bench.call(api.list_user_checkpoints(limit=2))
    found = [one.tinker_path for one in page.checkpoints]
    bench.expect(found == [newer, older], f"the newest two are {[newer, older]}, listed are {found}")
    rest = bench.call(api.list_user_checkpoints(limit=1, offset=1)).checkpoints
    bench.expect([one.tinker_path for one in rest] == [older], "the second page of one does not hold the second checkpoint")
    bench.expect(page.cursor is not None and page.cursor.total_count >= 2, f"the cursor is {page.cursor}")


@check("load_weights")
def load(bench: Bench) -> None:
    """A new model that loads a checkpoint gives the logprobs that were saved."""
    path, wanted = _trained(create(bench))
    trainee = create(bench, 1)
    bench.result(_load(trainee, path))
    found = trainee.logprobs()
    bench.require(alike(wanted, found, _moved(bench, wanted)), f"the logprobs are {distance(wanted, found):g} away")


@check("load_weights")
def resume(bench: Bench) -> None:
    """A model can be created by loading, under the id that a client computes; its first request has number 1."""
    path, wanted = _trained(create(bench))
    model_id = f"{bench.session()}:train:7"
    body = models.LoadWeightsRequest(session_id=bench.session(), model_seq_id=7, path=path)
    try:
        answer = bench.result(bench.submit(api.load_weights(body), models.LoadWeightsResponse))
    except Refused as error:
        raise Absent(str(error)) from error
    bench.expect(answer.model_id in (model_id, None), f"the model id is {answer.model_id!r}, not {model_id!r}")
    found = Trainee(bench, model_id).logprobs()
    bench.require(alike(wanted, found, _moved(bench, wanted)), f"the logprobs are {distance(wanted, found):g} away")


@check("load_weights")
def optimizer_state(bench: Bench) -> None:
    """With the optimizer's state a loaded model takes the step that the saved one takes; without it another one."""
    original = create(bench)
    original.learn(params=ADAM)
    original.learn([ONE], ADAM)
    path = original.saved(_name())
    saved = original.logprobs()
    original.learn([ONE], ADAM)
    wanted = original.logprobs()
    moved = effect(saved, wanted)
    restored, fresh = (_next_step(bench, number, path, optimizer=number == 1) for number in (1, 2))
    bench.expect(alike(wanted, restored, moved), f"with its state the next step is {distance(wanted, restored):g} away")
    bench.expect(distance(wanted, fresh) > distance(wanted, restored), "without its state the next step is the same")


def _next_step(bench: Bench, number: int, path: str, *, optimizer: bool) -> Floats:
    trainee = create(bench, number)
    bench.result(_load(trainee, path, optimizer=optimizer))
    trainee.learn([ONE], ADAM)
    return trainee.logprobs()


@check("load_weights")
def missing(bench: Bench) -> None:
    """Loading what was never saved fails, and is not the server's fault."""
    trainee = create(bench)
    try:
        bench.outcome(_load(trainee, f"tinker://{trainee.model_id}/weights/no-such-checkpoint"))
    except Refused as error:
        bench.expect(error.status in (400, 404), f"it is refused with {error.status}")
    except Failed as error:
        bench.expect(error.category == "user", f"it fails with category {error.category!r}, not 'user'")
    except Absent:  # a 404 is a refusal here: the operation is there, as other checks see
        pass
    else:
        raise Contradiction("a checkpoint that was never saved was loaded")


@check("save_weights_for_sampler", core=True)
def named_for_sampler(bench: Bench) -> None:
    """Weights saved under a name can be sampled from, and are those that were trained."""
    trainee, name = create(bench), _name()
    trainee.learn()
    saved = trainee.save_for_sampler(path=name)
    wanted = f"tinker://{trainee.model_id}/sampler_weights/{name}"
    bench.expect(saved.path == wanted, f"the path is {saved.path!r}, not {wanted!r}")
    bench.require(saved.path is not None, "a named save answers no path")
    _samples_like(bench, Sampler.opened(bench, 5, model_path=str(saved.path)), trainee)


@check("save_weights_for_sampler", core=True)
def unnamed_for_sampler(bench: Bench) -> None:
    """Weights go straight into a sampling session, and stay what they are when training goes on."""
    trainee = create(bench)
    saved = trainee.save_for_sampler(sampling_session_seq_id=5)
    bench.require(saved.sampling_session_id is not None, "an unnamed save answers no sampling session")
    bench.expect(saved.path is None, f"an unnamed save answers the path {saved.path!r}")
    sampler = Sampler(bench, str(saved.sampling_session_id))
    before = _scores(sampler)
    trainee.learn()
    bench.expect(distance(before, _scores(sampler)) <= 1e-3, "a snapshot changes when training goes on")


@check("save_weights_for_sampler")
def inflight(bench: Bench) -> None:
    """Inflight weights follow the later inflight saves of their model."""
    trainee = create(bench)
    saved = trainee.save_for_sampler(sampling_session_seq_id=5, kind="inflight")
    bench.require(saved.sampling_session_id is not None, "an inflight save answers no sampling session")
    sampler = Sampler(bench, str(saved.sampling_session_id))
    before = _scores(sampler)
    trainee.learn()
    trainee.save_for_sampler(sampling_session_seq_id=6, kind="inflight")
    for _ in range(_INFLIGHT_TRIES):  # the weights arrive some time after the save
        if distance(before, _scores(sampler)) > 1e-5:
            return
        bench.deadline.pause(_INFLIGHT_PAUSE, "the new weights in the older inflight session")
    waited = _INFLIGHT_TRIES * _INFLIGHT_PAUSE
    bench.differs(f"{waited:.0f} s after an inflight save an older inflight session has its old weights")


@check("delete_checkpoint", core=True)
def delete(bench: Bench) -> None:
    """A deleted checkpoint is gone; deleting it again is refused with 404, a bare name with 400."""
    trainee, name = create(bench), _name()
    path = trainee.saved(name)
    request = api.delete_checkpoint(**_checkpoint(path))
    bench.call(request)
    bench.refused(request, 404)
    bench.refused(_info(path), 404)
    bare = api.delete_checkpoint(training_run_id=trainee.model_id, checkpoint_id=trainee.saved(name).rpartition("/")[2])
    bench.refused(bare, 400, 404)
    bench.expect(len(_listed(bench, trainee)) == 1, "deleting by a bare name took a checkpoint away")


@check("publish_checkpoint", "unpublish_checkpoint")
def publish(bench: Bench) -> None:
    """A checkpoint is made public and private again; what it is already is refused with 409."""
    trainee = create(bench)
    parts = _checkpoint(trainee.saved(_name()))
    for request, public in ((api.publish_checkpoint(**parts), True), (api.unpublish_checkpoint(**parts), False)):
        bench.call(request)
        (listed,) = _listed(bench, trainee)
        bench.require(
            listed.public is public, f"after {request.operation} the checkpoint is listed with public={listed.public}"
        )
        bench.refused(request, 409)


@check("set_checkpoint_ttl")
def time_to_live(bench: Bench) -> None:
    """A checkpoint expires when it is told to, at its save or later, and stays when that is taken back."""
    trainee = create(bench)
    parts = _checkpoint(trainee.saved(_name(), ttl_seconds=7200))
    bench.expect(_hours_left(_listed(bench, trainee)[0]) == 2, "saved with two hours to live, it expires at another time")
    for seconds, hours in ((3600, 1), (None, None)):
        bench.call(api.set_checkpoint_ttl(models.SetCheckpointTtlRequest(ttl_seconds=seconds), **parts))
        left = _hours_left(_listed(bench, trainee)[0])
        bench.require(left == hours, f"told to live for {seconds} seconds, it has {left} hours")


@check("save_weights_external", "get_external_weights_urls")
def external(bench: Bench) -> None:
    """Weights are saved as files, whose URLs work without a credential."""
    trainee, name = create(bench), _name()
    body = models.SaveWeightsExternalRequest(model_id=trainee.model_id, path=name, seq_id=1)
    try:
        saved = bench.result(bench.submit(api.save_weights_external(body), models.SaveWeightsExternalResponseInternal))
    except (Refused, Failed) as error:
        raise Absent(str(error)) from error
    wanted = f"tinker://{trainee.model_id}/external_weights/{name}"
    bench.expect(saved.path == wanted, f"the path is {saved.path!r}, not {wanted!r}")
    answer = bench.call(api.get_external_weights_urls(**_checkpoint(saved.path or wanted)))
    bench.require(bool(answer.urls), "there are no files")
    bench.expect(answer.expires > datetime.datetime.now(datetime.UTC), f"the URLs ended at {answer.expires}")
    for name, url in answer.urls.items():
        file = bench.link.fetch(url, bench.deadline)
        bench.require(file.status == 200 and bool(file.content), f"the file {name} answers {file.status}")


@check("get_checkpoint_archive")
def archive(bench: Bench) -> None:
    """A checkpoint can be downloaded as one archive, from a URL that needs no credential."""
    trainee = create(bench)
    path = trainee.save_for_sampler(path=_name()).path
    request = api.get_checkpoint_archive(**_checkpoint(str(path)))
    answer = bench.send(request, headers={"Accept": "application/gzip"})
    if answer.status in NOT_THERE:
        raise Absent(str(answer))
    url = answer.headers.get("location") if answer.status == 302 else bench.accepted(request, answer).url
    bench.require(bool(url), "a redirect names no target")
    file = bench.link.fetch(str(url), bench.deadline)
    bench.require(file.status == 200 and bool(file.content), f"the archive answers {file.status}")


@check("copy_weights")
def copy(bench: Bench) -> None:
    """A checkpoint is copied into a run of its own, and is the same there."""
    path = create(bench).saved(_name())
    if bench.send(api.copy_weights(models.CopyWeightsRequest(source_path=path)), content=b"{}").status in NOT_THERE:
        raise Absent("there is no copy_weights")
    body = models.CopyWeightsRequest(source_path=path, destination_project_id=_name())
    try:
        made = bench.call(api.copy_weights(body)).tinker_path
    except (Refused, Absent) as error:
        raise Absent(f"not into a project of any name: {error}") from error
    bench.require(made != path and made.rpartition("/")[2] != "", f"the copy of {path} is {made}")
    same = bench.call(_info(made)) == bench.call(_info(path))
    bench.expect(same, "the copy was made from something else")


# ------------------------------------------------------------------------------------------------------------------- parts


def _info(path: str) -> Request[models.WeightsInfoResponse]:
    return api.weights_info(models.WeightsInfoRequest(tinker_path=path))


def _trained(trainee: Trainee) -> tuple[str, Floats]:
    """The path of a model that has learned something, and its logprobs."""
    trainee.learn()
    return trainee.saved(_name()), trainee.logprobs()


def _moved(bench: Bench, trained: Floats) -> float:
    """How far the training went from a new model's logprobs."""
    return effect(create(bench, 99).logprobs(), trained)


def _load(trainee: Trainee, path: str, *, optimizer: bool = False) -> Promise[models.LoadWeightsResponse]:
    """Load as the first request of a model."""
    body = models.LoadWeightsRequest(model_id=trainee.model_id, seq_id=1, path=path, optimizer=optimizer)
    trainee.number = 2
    return trainee.bench.submit(api.load_weights(body), models.LoadWeightsResponse)


def _listed(bench: Bench, trainee: Trainee) -> list[models.Checkpoint]:
    return bench.call(api.list_checkpoints(training_run_id=trainee.model_id)).checkpoints


def _hours_left(checkpoint: models.Checkpoint) -> int | None:
    if checkpoint.expires_at is None:
        return None
    left = checkpoint.expires_at - datetime.datetime.now(datetime.UTC)
    return round(left.total_seconds() / 3600)


def _scores(sampler: Sampler) -> Floats:
    """The logprobs of the prompt after its first token."""
    found = sampler.sample(prompt_logprobs=True, max_tokens=1).prompt_logprobs or []
    return np.array([0.0 if value is None else value for value in found[1:]], np.float64)


def _samples_like(bench: Bench, sampler: Sampler, trainee: Trainee) -> None:
    """The sampler scores the prompt as the model that was trained does, and not as the base model."""
    wanted = trainee.logprobs([datum(PROMPT[:-1], PROMPT[1:])])
    apart = distance(wanted, _scores(sampler))
    bench.expect(apart <= 0.1, f"training and sampling are {apart:g} apart about the prompt's logprobs")
