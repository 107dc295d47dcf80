"""``tinker checkpoint``: what the server keeps of trained weights."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import click

import tinker
from tinker.cli import clients, reading
from tinker.cli import output as terminal
from tinker.cli.clients import Listing
from tinker.cli.options import (
    CheckpointName,
    ExpiryOption,
    GlobalOptions,
    Natural,
    OffsetOption,
    Option,
    Positive,
    command,
)
from tinker.cli.output import Columns, CommandFailed

_PAGE = 1000
# left out on a narrow terminal; the path has the last two
_OPTIONAL = ("Public", "Checkpoint ID", "Type")
_COLUMNS: Columns[tinker.Checkpoint] = [
    ("Checkpoint ID", lambda checkpoint: checkpoint.checkpoint_id),
    ("Type", lambda checkpoint: checkpoint.checkpoint_type),
    ("Size", lambda checkpoint: terminal.format_size(checkpoint.size_bytes)),
    ("Public", lambda checkpoint: checkpoint.public),
    ("Created", lambda checkpoint: checkpoint.time),
    ("Expires", lambda checkpoint: checkpoint.expires_at or "Never"),
    ("Path", lambda checkpoint: checkpoint.tinker_path),
]


@command("tinker checkpoint list --run-id RUN")
def list_command(
    options: GlobalOptions,
    run_id: Annotated[
        str | None,
        Option("Show all checkpoints of this training run, by its ID or name.", metavar="ID"),
    ] = None,
    limit: Annotated[
        Natural, Option("Without --run-id: maximum number to show, newest first; 0 shows all.")
    ] = 20,
    offset: OffsetOption = 0,
) -> None:
    """List the checkpoints of a training run, or the newest of all runs."""
    rest = clients.rest_client(options)

    def page(count: int, start: int) -> tuple[list[tinker.Checkpoint], int | None]:
        answer = rest.list_user_checkpoints(count, start).result()
        return list(
            answer.checkpoints
        ), None if answer.cursor is None else answer.cursor.total_count

    if run_id is None:
        listing = clients.fetch_pages(options, "Fetching checkpoints", page, limit, _PAGE, offset)
        value = listing.to_json("checkpoints")
    else:
        run_id = clients.find_run(rest, run_id)
        found = list(rest.list_checkpoints(run_id).result().checkpoints[offset:])
        listing = Listing(found, len(found))
        value = {"run_id": run_id, **listing.to_json("checkpoints")}
    terminal.show(options, value, lambda: _show_listing(listing))


def _show_listing(listing: Listing[tinker.Checkpoint]) -> None:
    terminal.show_items(listing.items, _COLUMNS, listing.title("checkpoint"), optional=_OPTIONAL)


def parse_pair(text: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises BadParameter for other text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


@command("tinker checkpoint search --type training --metadata step=100")
def search(
    options: GlobalOptions,
    metadata: Annotated[
        tuple[str, ...],
        Option("Only checkpoints with this metadata; may be repeated.", metavar="KEY=VALUE"),
    ] = (),
    kind: Annotated[
        Literal["training", "sampler", "external"] | None, Option("Only this kind.", "--type")
    ] = None,
    base_models: Annotated[
        tuple[str, ...],
        Option(
            "Only this base model; repeat to match any of several.", "--base-model", metavar="NAME"
        ),
    ] = (),
    project_ids: Annotated[
        tuple[str, ...],
        Option("Only this project; repeat to match any of several.", "--project-id", metavar="ID"),
    ] = (),
    accessible: Annotated[
        bool, Option("Include checkpoints of others that you can access. Default: your own.")
    ] = False,
    limit: Annotated[Natural, Option("Maximum number to show; 0 shows all.")] = 20,
) -> None:
    """Find checkpoints that match every given condition, newest first."""
    request = tinker.types.CheckpointSearchRequest(
        user_metadata=dict(map(parse_pair, metadata)),
        checkpoint_type=kind,
        base_models=base_models or None,
        project_ids=project_ids or None,
        owner=tinker.types.AccessibleSearchOwner() if accessible else tinker.types.OwnSearchOwner(),
    )
    send = clients.rest_client(options).search_checkpoints
    found = clients.search_pages(
        options, "Searching checkpoints", request, send, lambda page: page.checkpoints, limit
    )
    terminal.show(
        options, {"checkpoints": found}, lambda: _show_listing(Listing(found, len(found)))
    )


@command("tinker checkpoint info tinker://RUN/weights/final")
def info(options: GlobalOptions, checkpoint_path: str) -> None:
    """Show a checkpoint and its adapter."""
    rest = clients.rest_client(options)
    path = clients.find_path(rest, checkpoint_path)
    checkpoint = find_checkpoint(rest, path)
    weights = _find_weights_info(rest, path.tinker_path)
    is_lora, rank = (None, None) if weights is None else (weights.is_lora, weights.lora_rank)
    properties = [
        ("Checkpoint ID", checkpoint.checkpoint_id),
        ("Type", checkpoint.checkpoint_type),
        ("Tinker Path", checkpoint.tinker_path),
        *((name, cell(checkpoint)) for name, cell in _COLUMNS[2:-1]),
        ("Training Run ID", path.training_run_id),
        ("LoRA", terminal.format_lora(is_lora, rank)),
        *terminal.list_metadata(checkpoint.user_metadata),
    ]
    value = {**checkpoint.model_dump(), "is_lora": is_lora, "lora_rank": rank}
    terminal.show_properties(options, value, f"Checkpoint: {checkpoint.checkpoint_id}", properties)


def find_checkpoint(
    rest: tinker.RestClient, path: tinker.ParsedCheckpointTinkerPath
) -> tinker.Checkpoint:
    """Find a checkpoint in the list of its run, as no operation returns a single one."""
    for checkpoint in rest.list_checkpoints(path.training_run_id).result().checkpoints:
        if (
            checkpoint.tinker_path == path.tinker_path
            or checkpoint.checkpoint_id == path.checkpoint_id
        ):
            return checkpoint
    raise CommandFailed(f"Checkpoint not found: {path.tinker_path}")


def _find_weights_info(
    rest: tinker.RestClient, tinker_path: str
) -> tinker.types.WeightsInfoResponse | None:
    """Fetch the adapter's description; None where the server has no such operation."""
    from tinker._http.retry import is_absent

    try:
        return rest.get_weights_info_by_tinker_path(tinker_path).result()
    except tinker.APIStatusError as error:
        if not is_absent(error):
            raise
        return None


_RANK = 32
_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_ALIASES = {**_TYPES, **{kind: kind for kind in _TYPES.values()}}


@command("tinker checkpoint publish tinker://RUN/weights/final")
def publish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a checkpoint public: everybody can load, sample and download it. Only the owner of its
    run can do this.
    """
    path = clients.parse_path(checkpoint_path).tinker_path
    clients.rest_client(options).publish_checkpoint_from_tinker_path(path).result()
    terminal.note(options, f"{path} is public.")


@command("tinker checkpoint unpublish tinker://RUN/weights/final")
def unpublish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a public checkpoint private again. Only the owner of its run can do this."""
    path = clients.parse_path(checkpoint_path).tinker_path
    clients.rest_client(options).unpublish_checkpoint_from_tinker_path(path).result()
    terminal.note(options, f"{path} is private.")


@command("tinker checkpoint set-ttl tinker://RUN/weights/final --ttl 86400")
def set_ttl(
    options: GlobalOptions,
    checkpoint_path: str,
    ttl: ExpiryOption = None,
    remove: Annotated[bool, Option("Never expire.")] = False,
) -> None:
    """Set when a checkpoint expires (--ttl), or keep it forever (--remove)."""
    path = clients.parse_path(checkpoint_path).tinker_path
    if remove == (ttl is not None):
        raise CommandFailed("Give either --ttl or --remove")
    clients.rest_client(options).set_checkpoint_ttl_from_tinker_path(path, ttl).result()
    terminal.note(
        options,
        f"{path} never expires."
        if ttl is None
        else f"{path} expires in {terminal.format_count(ttl, 'second')}.",
    )


@command("tinker checkpoint create --model Qwen/Qwen3-8B --name start --sampler")
def create(
    options: GlobalOptions,
    model: Annotated[
        str | None, Option("Base model of the new adapter.", "-m", "--model", metavar="NAME")
    ] = None,
    start: Annotated[
        str | None,
        Option(
            "Checkpoint or run to load instead, with its optimizer state.",
            "--from",
            metavar="PATH_OR_RUN",
        ),
    ] = None,
    rank: Annotated[
        Positive | None, Option(f"Rank of the new LoRA adapter. Default: {_RANK}.")
    ] = None,
    seed: Annotated[
        int | None, Option("Seed for initializing the adapter. Default: chosen by the server.")
    ] = None,
    train_mlp: Annotated[
        bool | None,
        Option(
            "Whether the MLP layers get an adapter. Default: yes.", "--train-mlp/--no-train-mlp"
        ),
    ] = None,
    train_attn: Annotated[
        bool | None,
        Option(
            "Whether the attention layers get one. Default: yes.", "--train-attn/--no-train-attn"
        ),
    ] = None,
    train_unembed: Annotated[
        bool | None,
        Option(
            "Whether the output layer gets one. Default: yes.", "--train-unembed/--no-train-unembed"
        ),
    ] = None,
    metadata: Annotated[
        tuple[str, ...], Option("Metadata of the checkpoint; may be repeated.", metavar="KEY=VALUE")
    ] = (),
    name: Annotated[CheckpointName, Option("Name of the checkpoint.", metavar="NAME")] = "initial",
    sampler: Annotated[bool, Option("Also save a checkpoint to sample from.")] = False,
    ttl: ExpiryOption = None,
) -> None:
    """Create a training run and save it immediately.

    The checkpoint is an untrained adapter from which several runs can start, or a copy of another
    checkpoint.
    """
    layers = (train_mlp, train_attn, train_unembed)
    if (model is None) == (start is None):
        raise click.UsageError(
            "Give either --model NAME for a new adapter (see `tinker model list`), "
            "or --from PATH for a copy."
        )
    if start is not None and any(value is not None for value in (rank, seed, *layers)):
        raise click.UsageError(
            "--rank, --seed and --train-... cannot be used with --from: the adapter is a copy."
        )
    clients.check_start(model, start)
    pairs = dict(map(parse_pair, metadata)) or None
    with clients.service_client(options) as service:
        if start is not None:
            path = clients.find_path(service.create_rest_client(), start, to_train=True).tinker_path
            training = clients.train_from(service, path)
        else:
            mlp, attn, unembed = (value is not False for value in layers)
            training = service.create_lora_training_client(
                model or "", rank or _RANK, seed, mlp, attn, unembed
            ).result()
        saved = training.save_state(name, ttl, user_metadata=pairs)
        sampled = (
            training.save_weights_for_sampler(name, ttl, user_metadata=pairs) if sampler else None
        )
        path, sampler_path = saved.result().path, None if sampled is None else sampled.result().path
    value = {
        "training_run_id": training.model_id,
        "checkpoint_path": path,
        "sampler_path": sampler_path,
    }
    properties = [("Training Run ID", training.model_id), ("To train on", path)]
    properties += [] if sampler_path is None else [("To sample from", sampler_path)]
    terminal.show_properties(options, value, "Checkpoint", properties)


@command(
    "tinker checkpoint delete tinker://RUN/weights/final",
    "tinker checkpoint delete --run-id RUN --before 2026-01-31T08:00Z",
)
def delete(
    options: GlobalOptions,
    checkpoint_paths: tuple[str, ...] = (),
    run_id: Annotated[
        str | None,
        Option("Delete the checkpoints of this training run, by its ID or name.", metavar="ID"),
    ] = None,
    checkpoint_type: Annotated[
        str | None,
        Option(
            "With --run-id: only weights, sampler_weights or external_weights.",
            "--type",
            metavar="KIND",
        ),
    ] = None,
    before: Annotated[
        str | None,
        Option(
            "With --run-id: only those created before this time, such as 2026-01-31T08:00Z.",
            metavar="TIME",
        ),
    ] = None,
    after: Annotated[
        str | None, Option("With --run-id: only those created after this time.", metavar="TIME")
    ] = None,
    yes: Annotated[bool, Option("Delete without asking.", "-y", "--yes")] = False,
) -> None:
    """Permanently delete the given checkpoints, or those of a run that match every condition.

    Times without a zone are UTC. Exits with 1 if a checkpoint could not be deleted; the others are
    deleted.
    """
    if checkpoint_paths and run_id is not None:
        raise CommandFailed("Give either checkpoint paths or --run-id")
    if run_id is None and (checkpoint_type or before or after):
        raise CommandFailed("--type, --before and --after need --run-id")
    if run_id is None and not checkpoint_paths:
        raise CommandFailed("Nothing to delete", "Give checkpoint paths or --run-id.")
    if run_id is None:
        parsed = {(one := clients.parse_path(path)).tinker_path: one for path in checkpoint_paths}
        rest, paths = clients.rest_client(options), list(parsed)
        chosen = [] if yes else [find_checkpoint(rest, one) for one in parsed.values()]
    else:
        earliest, latest = (
            None if text is None else reading.parse_time(text) for text in (after, before)
        )
        conditions = _parse_kind(checkpoint_type), latest, earliest
        run_id = clients.find_run(rest := clients.rest_client(options), run_id)
        chosen = [
            one
            for one in rest.list_checkpoints(run_id).result().checkpoints
            if _matches(one, *conditions)
        ]
        paths = [one.tinker_path for one in chosen]
    if not paths and options.format == "table":
        terminal.show_lines(
            "No checkpoints found for run "
            f"{run_id}{' matching filters' if checkpoint_type or before or after else ''}"
        )
    elif yes or not paths or _ask(chosen):
        _delete(options, rest, paths)
    else:
        terminal.say("Nothing was deleted.")


def _parse_kind(text: str | None) -> str | None:
    if text is not None and text not in _ALIASES:
        raise CommandFailed(f"Invalid checkpoint type: {text}", f"Valid types: {', '.join(_TYPES)}")
    return None if text is None else _ALIASES[text]


def _matches(
    checkpoint: tinker.Checkpoint,
    kind: str | None,
    before: datetime.datetime | None,
    after: datetime.datetime | None,
) -> bool:
    time = reading.with_zone(checkpoint.time)
    return (
        kind in (None, checkpoint.checkpoint_type)
        and (before is None or time < before)
        and (after is None or time > after)
    )


def _ask(chosen: Sequence[tinker.Checkpoint]) -> bool:
    """Ask the user; CommandFailed when the input ends without an answer."""
    terminal.say(f"{terminal.format_count(len(chosen), 'checkpoint')} would be deleted:")
    for one in chosen:
        terminal.say(
            f"  - {one.tinker_path} ({terminal.format_size(one.size_bytes)}, created "
            f"{terminal.format_timestamp(one.time)})"
        )
    terminal.say(f"Together: {terminal.format_size(sum(one.size_bytes or 0 for one in chosen))}")
    try:
        return click.confirm("This cannot be undone. Delete?", err=True)
    except click.Abort:
        raise CommandFailed(
            "No answer was given, so nothing was deleted", "Use --yes to delete without asking."
        ) from None


def _delete(options: GlobalOptions, rest: tinker.RestClient, paths: Sequence[str]) -> None:
    """Delete concurrently, and report what failed."""
    deletions = {rest.delete_checkpoint_from_tinker_path(path): path for path in paths}
    with terminal.progress(options, "Deleting checkpoints", len(paths)) as advance:
        for count, _ in enumerate(concurrent.futures.as_completed(deletions), start=1):
            advance(count)
    errors = {path: deletion.exception() for deletion, path in deletions.items()}
    failed = {
        path: terminal.read_message(error)
        for path, error in errors.items()
        if isinstance(error, Exception)
    }
    deleted = len(paths) - len(failed)
    if options.format == "json":
        records = [{"tinker_path": path, "error": reason} for path, reason in failed.items()]
        terminal.show_json({"deleted_count": deleted, "failed": records}, indent=None)
    elif deleted:
        click.echo(f"Deleted {terminal.format_count(deleted, 'checkpoint')}")
    if failed:
        problem = f"{terminal.format_count(len(failed), 'checkpoint')} could not be deleted"
        raise CommandFailed(problem, *(f"{path}: {reason}" for path, reason in failed.items()))


# What the library calls its arguments, and the options that give them.
_OPTIONS = {
    "pass base_model and lora_config": "pass --base-model and --rank",
    "pass base_model": "pass --base-model",
    "lora_config.rank is": "--rank is",
}


@contextmanager
def _transfer(
    options: GlobalOptions, description: str, *, is_local: bool = False
) -> Generator[tuple[tinker.ServiceClient | None, Callable[[tinker.checkpoints.Progress], None]]]:
    """Open a session for moving files, none for those of this machine, and show their progress with
    the function it yields.
    """
    with (
        nullcontext() if is_local else clients.service_client(options, interactive=True) as service,
        terminal.progress(options, description, None, nbytes=True) as advance,
    ):
        yield service, lambda now: advance(now.done_nbytes, total=now.total_nbytes)


@command("tinker checkpoint download tinker://RUN/sampler_weights/final --output out")
def download(
    options: GlobalOptions,
    checkpoint_path: str,
    output: Annotated[
        Path,
        click.Path(file_okay=False, path_type=Path),
        Option(
            "Where to create the new folder. Default: the current folder.",
            "-o",
            "--output",
            metavar="FOLDER",
            show_default=False,
        ),
    ] = Path(),
    force: Annotated[bool, Option("Replace an existing folder.")] = False,
    form: Annotated[
        Literal["auto", "external", "archive"],
        Option(
            "external exports PEFT files, archive unpacks the server's own format, "
            "auto uses what is available."
        ),
    ] = "auto",
) -> None:
    """Download a checkpoint into a new folder, named after its path. A run stands for its latest
    sampler checkpoint.

    A training checkpoint is exported first, in a short session on its base model; the export is
    deleted afterward. To resume an interrupted download, run the command again. Encrypted files end
    in .age; decrypt them with `age -d`.
    """
    path = clients.find_path(clients.rest_client(options), checkpoint_path).tinker_path
    try:
        with _transfer(options, f"Downloading {path}") as (service, report):
            download = tinker.checkpoints.download
            done = download(
                path, output, form=form, overwrite=force, progress=report, service=service
            ).result()
    except FileExistsError as error:
        raise CommandFailed(
            str(error), "Use --force to replace it, or --output to choose another folder."
        ) from None
    saved, folder, nbytes = done.checkpoint_path, str(done.destination), done.nbytes
    value = {"checkpoint_path": saved, "destination": folder, "file_size_bytes": nbytes}
    properties = {
        "Checkpoint Path": saved,
        "Total Size": terminal.format_size(nbytes),
        "Downloaded to": folder,
    }
    terminal.show_properties(options, value, f"Checkpoint Download: {path}", properties)


@command(
    "tinker checkpoint merge RUN --base ./Qwen3-8B --out ./merged",
    "tinker checkpoint merge ./adapter --base ./Qwen3-8B --out ./merged",
)
def merge(
    options: GlobalOptions,
    checkpoint_path: str,
    *,
    base: Annotated[
        Path,
        click.Path(file_okay=False, path_type=Path),
        Option(
            "Folder of the base model, with its config.json and safetensors files.",
            metavar="FOLDER",
        ),
    ],
    out: Annotated[
        Path,
        click.Path(file_okay=False, path_type=Path),
        Option("Folder of the merged model, which must be new or empty.", metavar="FOLDER"),
    ],
) -> None:
    """Merge an adapter into its base model, and write the whole model, for transformers, vLLM and
    other programs.

    CHECKPOINT_PATH can also be a run, which stands for its latest sampler checkpoint, or a folder
    or an archive of this machine with PEFT's files. The model is written matrix by matrix, in the
    precision of the base model. If the adapter changes an output layer that is also the input
    layer, the merged model gets an output layer of its own.
    """
    path, is_local = checkpoint_path, Path(checkpoint_path).exists()
    if not is_local:
        path = clients.find_path(clients.rest_client(options), checkpoint_path).tinker_path
    with _transfer(options, f"Merging {path}", is_local=is_local) as (service, report):
        done = tinker.checkpoints.merge(path, base, out, progress=report, service=service)
    value = {
        "checkpoint_path": path,
        "destination": str(done.destination),
        "file_size_bytes": done.nbytes,
    }
    properties = {
        "Adapter": path,
        "Base Model": str(base),
        "Total Size": terminal.format_size(done.nbytes),
    }
    properties |= {
        "Own Output Layer": "new" if done.has_new_head else "as in the base model",
        "Merged into": str(done.destination),
    }
    terminal.show_properties(
        options,
        {**value, "has_new_head": done.has_new_head},
        f"Checkpoint Merge: {path}",
        properties,
    )


class _PushOptions(NamedTuple):
    """The options that are arguments of ``push_to_hub``, with its names."""

    public: Annotated[bool, Option("Make a new repository public. Default: private.")] = False
    revision: Annotated[
        str | None, Option("Branch. Default: the main branch.", metavar="BRANCH")
    ] = None
    commit_message: Annotated[str | None, Option("Commit message.", metavar="TEXT")] = None
    create_pr: Annotated[bool, Option("Open a pull request instead of committing.")] = False
    allow_patterns: Annotated[
        tuple[str, ...],
        Option(
            "Upload only matching files; may be repeated.", "--allow-pattern", metavar="PATTERN"
        ),
    ] = ()
    ignore_patterns: Annotated[
        tuple[str, ...],
        Option(
            "Do not upload matching files; may be repeated.", "--ignore-pattern", metavar="PATTERN"
        ),
    ] = ()


@command("tinker checkpoint push-hf tinker://RUN/sampler_weights/final --repo me/model")
def push_hf(
    options: GlobalOptions,
    checkpoint_path: str,
    repo_id: Annotated[
        str | None,
        Option(
            "Name of the repository. Default: tinker-<base model>-<run> in your account.",
            "-r",
            "--repo",
            metavar="USER/NAME",
        ),
    ] = None,
    *,
    chosen: _PushOptions,
    no_model_card: Annotated[bool, Option("Do not add a README.md.")] = False,
) -> None:
    """Push a checkpoint to the Hugging Face Hub as a PEFT adapter. Log in first with
    `hf auth login`.
    """
    import attrs

    path = clients.find_path(clients.rest_client(options), checkpoint_path).tinker_path
    with _transfer(options, f"Pushing {path}") as (service, report):
        pushed = tinker.checkpoints.push_to_hub(
            path,
            repo_id,
            model_card=not no_model_card,
            progress=report,
            service=service,
            **chosen._asdict(),
        )
    value = attrs.asdict(
        pushed, filter=lambda field, value: value is not None and field.name != "url"
    )
    properties = {
        "Checkpoint Path": pushed.checkpoint_path,
        "Repository": pushed.repo_id,
        "Revision": pushed.revision or "main",
        "Public": pushed.public,
        "Commit": pushed.url,
    }
    terminal.show_properties(options, value, f"Pushed: {pushed.repo_id}", properties)


@command("tinker checkpoint upload ./my-adapter --base-model Qwen/Qwen3-8B")
def upload(
    options: GlobalOptions,
    folder: Path,
    base_model: Annotated[
        str | None,
        Option(
            "Name of the base model on the server. Default: the one in adapter_config.json.",
            metavar="NAME",
        ),
    ] = None,
    rank: Annotated[
        Positive | None, Option("Rank of the adapter, if there is no adapter_config.json.")
    ] = None,
    project_id: Annotated[
        str | None,
        Option(
            "Project of the checkpoint. Default: TINKER_PROJECT_ID, else your own.", metavar="ID"
        ),
    ] = None,
) -> None:
    """Upload a LoRA adapter from this machine as a checkpoint that you can train further.

    FOLDER contains what PEFT's save_pretrained writes: adapter_config.json and
    adapter_model.safetensors. To resume an interrupted upload, run the command again.
    """
    import attrs

    try:
        with _transfer(options, f"Uploading {folder}") as (service, report):
            done = tinker.checkpoints.upload(
                folder,
                base_model=base_model,
                lora_config=None if rank is None else tinker.LoraConfig(rank=rank),
                project_id=project_id,
                progress=report,
                service=service,
            ).result()
    except (OSError, ValueError) as error:
        raise CommandFailed(_name_options(str(error))) from None
    except tinker.BadRequestError as error:
        if base_model is None and error.code == "base_model_not_offered":
            error.add_note(
                "If the adapter belongs to a model of the server, pass its name: --base-model NAME"
            )
        raise
    path, size = done.checkpoint_path, terminal.format_size(done.nbytes)
    properties = {"Checkpoint Path": path, "Base Model": done.base_model, "Total Size": size}
    terminal.show_properties(
        options, attrs.asdict(done), f"Checkpoint Upload: {folder}", properties
    )


def _name_options(text: str) -> str:
    """Return an error of the library with the options in the place of its arguments."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text
