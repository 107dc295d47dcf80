"""``tinker checkpoint download`` and ``tinker checkpoint push-hf``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import click

from tinker.cli.clients import service_client
from tinker.cli.commands.checkpoint.paths import parse_path
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import Advance, format_bool, format_size, progress, show, show_properties

if TYPE_CHECKING:
    from tinker import checkpoints

_SourceName: TypeAlias = Literal["auto", "external", "archive"]


def report_to(advance: Advance) -> Callable[[checkpoints.Progress], None]:
    """Return a function that shows the progress of files."""

    def tell(now: checkpoints.Progress) -> None:
        advance(now.done_nbytes, total=now.total_nbytes)

    return tell


@click.command()
@click.argument("checkpoint_path")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="FOLDER",
    help="Where to create the new folder. Default: the current folder.",
)
@click.option("--force", is_flag=True, help="Replace an existing folder.")
@click.option(
    "--form",
    type=click.Choice(["auto", "external", "archive"]),
    default="auto",
    show_default=True,
    help="external exports PEFT files, archive unpacks the server's own format, auto uses what is available.",
)
@pass_options
def download(
    options: GlobalOptions, checkpoint_path: str, output: Path, force: bool, form: Literal["auto", "external", "archive"]
) -> None:
    """Download a checkpoint into a new folder, named after its path.

    A training checkpoint is exported first, in a short session on its base model; the export is deleted afterward. To resume an
    interrupted download, run the command again. Encrypted files end in .age; decrypt them with `age -d`.
    """
    from tinker import checkpoints

    path = parse_path(checkpoint_path).tinker_path
    try:
        with (
            service_client(options, interactive=True) as service,
            progress(options, f"Downloading {path}", None, nbytes=True) as advance,
        ):
            done = checkpoints.download(
                path, output, form=form, overwrite=force, progress=report_to(advance), service=service
            ).result()
    except FileExistsError as error:
        message = str(error).replace("Target directory", "The folder")
        raise CommandFailed(message, "Use --force to replace it, or --output to choose another folder.") from None
    value = {
        "checkpoint_path": done.checkpoint_path,
        "destination": str(done.destination),
        "file_size_bytes": done.nbytes,
    }
    properties = {
        "Checkpoint Path": done.checkpoint_path,
        "Total Size": format_size(done.nbytes),
        "Downloaded to": str(done.destination),
    }
    show(options, value, lambda: show_properties(f"Checkpoint Download: {path}", properties))


@click.command("push-hf")
@click.argument("checkpoint_path")
@click.option(
    "-r",
    "--repo",
    "repo_id",
    metavar="USER/NAME",
    help="Name of the repository. Default: tinker-<base model>-<run> in your account.",
)
@click.option("--public", is_flag=True, help="Make a new repository public. Default: private.")
@click.option("--revision", metavar="BRANCH", help="Branch. Default: the main branch.")
@click.option("--commit-message", metavar="TEXT", help="Commit message.")
@click.option("--create-pr", is_flag=True, help="Open a pull request instead of committing.")
@click.option(
    "--allow-pattern", "allow_patterns", multiple=True, metavar="PATTERN", help="Upload only matching files; may be repeated."
)
@click.option(
    "--ignore-pattern",
    "ignore_patterns",
    multiple=True,
    metavar="PATTERN",
    help="Do not upload matching files; may be repeated.",
)
@click.option("--no-model-card", is_flag=True, help="Do not add a README.md.")
@pass_options
def push_hf(
    options: GlobalOptions,
    checkpoint_path: str,
    repo_id: str | None,
    public: bool,
    revision: str | None,
    commit_message: str | None,
    create_pr: bool,
    allow_patterns: tuple[str, ...],
    ignore_patterns: tuple[str, ...],
    no_model_card: bool,
) -> None:
    """Push a checkpoint to the Hugging Face Hub as a PEFT adapter. Log in first with `hf auth login`."""
    from tinker import checkpoints

    path = parse_path(checkpoint_path).tinker_path
    with (
        service_client(options, interactive=True) as service,
        progress(options, f"Downloading {path}", None, nbytes=True) as advance,
    ):
        pushed = checkpoints.push_to_hub(
            path,
            repo_id,
            public=public,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            model_card=not no_model_card,
            progress=report_to(advance),
            service=service,
        )
    show(options, _as_record(pushed), lambda: _show_pushed(pushed))


def _as_record(pushed: checkpoints.PushedCheckpoint) -> dict[str, Any]:
    """Convert to JSON fields; the branch only where one was given."""
    import attrs

    return attrs.asdict(pushed, filter=lambda field, value: value is not None and field.name != "url")


def _show_pushed(pushed: checkpoints.PushedCheckpoint) -> None:
    properties = {
        "Checkpoint Path": pushed.checkpoint_path,
        "Repository": pushed.repo_id,
        "Revision": pushed.revision or "main",
        "Public": format_bool(pushed.public),
        "Commit": pushed.url,
    }
    show_properties(f"Pushed: {pushed.repo_id}", properties)
