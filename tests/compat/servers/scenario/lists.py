"""What is there: runs, checkpoints, sessions, samplers."""

import urllib.request

from steps import step
from world import World, offered, wait

import tinker

AREA = "Lists"


def run_id(world: World) -> str:
    return str(wait(world.trained.get_info()).model_id)


def checkpoint_ids(world: World) -> list[str]:
    return [
        one.checkpoint_id for one in wait(world.rest.list_checkpoints(run_id(world))).checkpoints
    ]


@step(AREA, "training runs")
def runs(world: World) -> None:
    run = run_id(world)
    assert run in [
        one.training_run_id for one in wait(world.rest.list_training_runs(limit=100)).training_runs
    ]


@step(AREA, "a page of training runs")
def page(world: World) -> None:
    run_id(world), world.new_trainer()
    first, second = (
        wait(world.rest.list_training_runs(limit=1, offset=offset)).training_runs
        for offset in (0, 1)
    )
    assert len(first) == len(second) == 1 and first[0].training_run_id != second[0].training_run_id


@step(AREA, "a training run")
def run(world: World) -> None:
    found = wait(world.rest.get_training_run(run_id(world)))
    assert found.base_model == world.model and found.is_lora and found.lora_rank == 8, found


@step(AREA, "the run of a path")
def run_of_path(world: World) -> None:
    found = wait(world.rest.get_training_run_by_tinker_path(world.state))
    assert found.training_run_id == run_id(world), found


@step(AREA, "the checkpoints of a run")
def checkpoints(world: World) -> None:
    path = world.state
    paths = [
        one.tinker_path for one in wait(world.rest.list_checkpoints(run_id(world))).checkpoints
    ]
    assert path in paths, paths


@step(AREA, "all checkpoints")
def user_checkpoints(world: World) -> None:
    path = world.state
    assert path in [
        one.tinker_path for one in wait(world.rest.list_user_checkpoints(limit=100)).checkpoints
    ]


@step(AREA, "what weights are, by their path")
def weights_info(world: World) -> None:
    info = wait(world.rest.get_weights_info_by_tinker_path(world.state))
    assert info.base_model == world.model and info.lora_rank == 8, info


@step(AREA, "sessions")
def sessions(world: World) -> None:
    assert world.service
    run_id(world)
    assert wait(world.rest.list_sessions(limit=10)).sessions


@step(AREA, "a session and its runs")
def session(world: World) -> None:
    known = [run_id(world)]
    listed = wait(world.rest.list_sessions(limit=100)).sessions
    found = [wait(world.rest.get_session(one)) for one in listed]
    assert any(set(known) <= set(one.training_run_ids) for one in found), found


@step(AREA, "a sampler")
def sampler(world: World) -> None:
    client = world.base_sampler
    identity = getattr(client, "sampling_session_id", None) or client._sampling_session_id
    assert wait(world.rest.get_sampler(identity)).base_model == world.model


@step(AREA, "publish a checkpoint and take it back")
def publish(world: World) -> None:
    wait(world.rest.publish_checkpoint_from_tinker_path(world.state))
    wait(world.rest.unpublish_checkpoint_from_tinker_path(world.state))


@step(AREA, "the time to live of a checkpoint")
def ttl(world: World) -> None:
    path = wait(world.trained.save_state("for-a-while")).path
    wait(offered(world.rest, "set_checkpoint_ttl_from_tinker_path")(path, 3600))


@step(AREA, "the archive of a checkpoint", seconds=120)
def archive(world: World) -> None:
    url = wait(
        offered(world.rest, "get_checkpoint_archive_url_from_tinker_path")(world.sampler_path), 100
    ).url
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert len(answer.read()) > 1000


@step(AREA, "delete a checkpoint")
def delete(world: World) -> None:
    path = wait(world.trained.save_state("to-delete")).path
    wait(world.rest.delete_checkpoint_from_tinker_path(path))
    assert path not in [
        one.tinker_path for one in wait(world.rest.list_checkpoints(run_id(world))).checkpoints
    ]


@step(AREA, "who the key belongs to")
def whoami(world: World) -> None:
    assert wait(offered(world.rest, "whoami")()).user_id


@step(AREA, "a list as an error that says what is missing")
def missing(world: World) -> None:
    try:
        wait(world.rest.get_session("no-such-session"))
    except (tinker.APIStatusError, tinker.TinkerError) as error:
        assert getattr(error, "status_code", 404) in (400, 404, 422), repr(error)
    else:
        raise AssertionError("a session that is not there was found")
