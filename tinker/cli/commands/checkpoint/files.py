"""``tinker checkpoint download``, ``merge``, ``push-hf`` and ``upload``: the files
of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import click

import tinker
from tinker.cli.clients import rest_client, service_client
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import find_path
from tinker.cli.options import GlobalOptions, Option, Positive, command
from tinker.cli.output import format_size, progress, show_properties

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
        nullcontext() if is_local else service_client(options, interactive=True) as service,
        progress(options, description, None, nbytes=True) as advance,
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
    path = find_path(rest_client(options), checkpoint_path).tinker_path
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
    saved, target, nbytes = done.checkpoint_path, str(done.destination), done.nbytes
    value = {"checkpoint_path": saved, "destination": target, "file_size_bytes": nbytes}
    properties = {
        "Checkpoint Path": saved,
        "Total Size": format_size(nbytes),
        "Downloaded to": target,
    }
    show_properties(options, value, f"Checkpoint Download: {path}", properties)


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
        path = find_path(rest_client(options), checkpoint_path).tinker_path
    with _transfer(options, f"Merging {path}", is_local=is_local) as (service, report):
        done = tinker.checkpoints.merge(path, base, out, progress=report, service=service)
    value = {
        "checkpoint_path": path,
        "destination": str(done.destination),
        "file_size_bytes": done.nbytes,
    }
    properties = {"Adapter": path, "Base Model": str(base), "Total Size": format_size(done.nbytes)}
    properties |= {
        "Own Output Layer": "new" if done.has_new_head else "as in the base model",
        "Merged into": str(done.destination),
    }
    show_properties(
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

    path = find_path(rest_client(options), checkpoint_path).tinker_path
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
    show_properties(options, value, f"Pushed: {pushed.repo_id}", properties)


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
    path, size = done.checkpoint_path, format_size(done.nbytes)
    properties = {"Checkpoint Path": path, "Base Model": done.base_model, "Total Size": size}
    show_properties(options, attrs.asdict(done), f"Checkpoint Upload: {folder}", properties)


def _name_options(text: str) -> str:
    """Return an error of the library with the options in the place of its arguments."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text
