"""Download checkpoints as files, upload adapters, merge them into models, and put checkpoints onto
a model hub.

import tinker.checkpoints

done = tinker.checkpoints.download("tinker://run/weights/final", "models").result()
print(done.destination, done.nbytes)
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import attrs
from tinker_wire import models

from tinker import _checkpoints
from tinker._checkpoints import FileSource, LocalAdapter, Uploading, fetch, in_utc, read_adapter
from tinker._checkpoints import merging as _merging
from tinker._http import retry
from tinker._http.transport import open_files
from tinker._loop import Clock, run_together
from tinker._runtime import Runtime, run
from tinker._validate import MIN_TTL_SECONDS
from tinker.errors import APIError, APIStatusError, CircuitOpenError, TinkerError
from tinker.futures import APIFuture
from tinker.types.params import SCHEME, ParsedCheckpointTinkerPath
from tinker_records import suggest_argument

if TYPE_CHECKING:
    from tinker.service_client import ServiceClient

__all__ = [
    "Download",
    "DownloadSource",
    "MergedModel",
    "Progress",
    "PushedCheckpoint",
    "UploadedCheckpoint",
    "download",
    "folder_name",
    "merge",
    "push_to_hub",
    "upload",
]

logger: logging.Logger = logging.getLogger("tinker")
T = TypeVar("T")

DownloadSource: TypeAlias = Literal["auto", "external", "archive"]
"""How to download a checkpoint: as exported files (``external``), as an ``archive``, or whichever
suits its kind (``auto``).
"""

# A signed URL with less than this left is not used for a new request.
FRESH_SECONDS = 300.0
# Files of one checkpoint at once: enough for a fast line, few enough for a slow one.
FILES_AT_ONCE = 4
_EXPORT_NAME = "download"
_ARCHIVE = "archive"
# signed URLs by file name, and when they expire
_UrlsUntil: TypeAlias = tuple[Mapping[str, str], datetime.datetime]


@attrs.frozen(kw_only=True)
class Progress:
    """Progress of a download or an upload.

    Attributes:
        done_nbytes: The number of bytes written to disk or sent.
        total_nbytes: The size of all files in bytes; None until the size of every file is known.
        files: The number of files.
    """

    done_nbytes: int
    total_nbytes: int | None
    files: int


@attrs.frozen(kw_only=True)
class Download:
    """Files that a download wrote to disk.

    Attributes:
        checkpoint_path: The path of the checkpoint.
        destination: The folder of the files.
        files: The names of the files, relative to ``destination``.
        nbytes: The size of all files in bytes.
    """

    checkpoint_path: str
    destination: Path
    files: tuple[str, ...]
    nbytes: int


@attrs.frozen(kw_only=True)
class MergedModel:
    """A model that was made of a base model and an adapter.

    Attributes:
        destination: The folder of the files.
        nbytes: The size of the weights in bytes.
        has_new_head: Whether the model has an output layer of its own, where the base model uses
            its input layer.
    """

    destination: Path
    nbytes: int
    has_new_head: bool


@attrs.frozen(kw_only=True)
class PushedCheckpoint:
    """A checkpoint that was pushed to a hub.

    Attributes:
        checkpoint_path: The path of the checkpoint.
        repo_id: The repository on the hub.
        revision: The branch; None is the main branch.
        public: Whether a repository that was created is public.
        url: The page of the commit or pull request.
    """

    checkpoint_path: str
    repo_id: str
    revision: str | None
    public: bool
    url: str


@attrs.frozen(kw_only=True)
class UploadedCheckpoint:
    """An adapter that was uploaded to the server.

    Attributes:
        checkpoint_path: The path of the checkpoint. You can continue training from it.
        base_model: The base model of the adapter.
        files: The names of the files that were sent.
        nbytes: The size of all files in bytes.
    """

    checkpoint_path: str
    base_model: str
    files: tuple[str, ...]
    nbytes: int


def folder_name(tinker_path: str) -> str:
    """Return the name of the folder that a checkpoint is downloaded into: the path with ``_`` for
    ``/`` and ``:``.

    Args:
        tinker_path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.

    Returns:
        The name of the folder.

    Raises:
        ValueError: The path is not a checkpoint path.

    >>> folder_name("tinker://5e55:train:0/weights/final")
    '5e55_train_0_weights_final'
    """
    path = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path).tinker_path
    return path.removeprefix(SCHEME).translate({ord("/"): "_", ord(":"): "_"})


@suggest_argument
def download(
    tinker_path: str,
    directory: str | os.PathLike[str] = ".",
    *,
    form: DownloadSource = "auto",
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    service: ServiceClient | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> APIFuture[Download]:
    """Download a checkpoint into a new folder.

    The files are first written to ``<folder>.partial``, and moved when all of them are complete and
    verified. A later call resumes an interrupted download if the files on the server have not
    changed.

    An ``external_weights`` checkpoint is already a set of files. Checkpoints of other kinds are
    exported first: the client creates a training run from the checkpoint, saves it with a lifetime
    of an hour, downloads the files and deletes the export. If the server has archives, the
    checkpoint can be downloaded as an archive instead. Archives are rejected if they contain names
    outside the folder, links or devices, or are made to fill the disk.

    The files are downloaded without a credential, and their URLs are renewed when they expire. A
    download is resumed after a failure, until no data has arrived for five minutes.

    Args:
        tinker_path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.
        directory: The parent of the new folder. :func:`folder_name` returns the name of the folder.
        form: "external" downloads an export, "archive" an archive. "auto" downloads an export of
            ``weights``, or the archive if the server has no exports, and the archive of
            ``sampler_weights``.
        overwrite: Whether to replace an existing folder.
        progress: A function called with every piece, on a thread of this package, so it should
            return quickly. If it raises an exception, the download ends. Optional.
        service: The client whose session and credential to use. None creates a client for this
            download and closes it.
        base_url: The server, as for ServiceClient. Only valid without ``service``.
        api_key: The credential, as for ServiceClient. Only valid without ``service``.

    Returns:
        A future of the description of the files.

    Raises:
        ValueError: At once, if the path is not a checkpoint path, or the checkpoint is not
            available in this form.
        FileExistsError: At once, if the folder exists and ``overwrite`` is False.
        TinkerError: From the future, if a file does not match its checksum or an archive is not
            safe. RestClient's errors are possible too.

    >>> import tempfile, tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> saved = training.save_weights_external("doctest-of-download", ttl_seconds=3600).result(
    ...     timeout=30
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = download(saved.path, folder, service=service).result(timeout=30)
    ...     sum(file.stat().st_size for file in done.destination.iterdir()) == done.nbytes
    True
    """
    path = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    _check_form(form, path)
    place = Path(directory) / folder_name(tinker_path)
    if place.exists() and not overwrite:
        raise FileExistsError(f"{place} already exists")
    job = partial(_download, path, place, form, overwrite, _Counts(progress))
    return _start("download", job, service, base_url, api_key)


def upload(
    directory: str | os.PathLike[str],
    *,
    base_model: str | None = None,
    lora_config: models.LoraConfig | None = None,
    project_id: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    service: ServiceClient | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> APIFuture[UploadedCheckpoint]:
    """Upload a LoRA adapter from this machine as a checkpoint that you can train further.

    The folder has the files that PEFT's ``save_pretrained`` writes: ``adapter_config.json`` and
    ``adapter_model.safetensors``. Both are checked before anything is sent, without reading the
    weights. Each file is sent to a signed URL with its SHA-256 and without a credential. The server
    verifies the files and creates a checkpoint with weights and no optimizer state.

    Uploads are retried for five minutes if a retry can help. If you call the function again after
    an interruption, the upload resumes: ``.<folder>.tinker-upload.json``, next to the folder, lists
    the files that the server already has.

    Args:
        directory: The folder of the adapter.
        base_model: The server's name of the base model. None uses the name in
            ``adapter_config.json``.
        lora_config: The rank and the adapted kinds of modules. None reads them from the files.
        project_id: The project of the checkpoint. None means the client's (``TINKER_PROJECT_ID``),
            or the user's default.
        progress: A function called with every piece, on a thread of this package, so it should
            return quickly. If it raises an exception, the upload ends. Optional.
        service: The client whose credential to use. None creates a client for this upload and
            closes it.
        base_url: The server, as for ServiceClient. Only valid without ``service``.
        api_key: The credential, as for ServiceClient. Only valid without ``service``.

    Returns:
        A future of the description of the checkpoint.

    Raises:
        FileNotFoundError: At once, if the folder or a file of the adapter is missing.
        ValueError: At once, if a file is damaged or contains another kind of adapter. The message
            names the file and the field.
        TinkerError: From the future, if the server requests a file that is missing. RestClient's
            errors are possible too, such as BadRequestError if the adapter does not match the base
            model.

    >>> import tempfile, tinker
    >>> service = tinker.ServiceClient(base_url="local://toy")
    >>> training = service.create_lora_training_client("tinker/toy", rank=4)
    >>> saved = training.save_weights_external("doctest-of-upload", ttl_seconds=3600).result(
    ...     timeout=30
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     files = download(saved.path, folder, service=service).result(timeout=30).destination
    ...     adapter = tinker.LoraConfig(rank=4)
    ...     brought = upload(
    ...         files, base_model="tinker/toy", lora_config=adapter, service=service
    ...     ).result(timeout=30)
    >>> service.create_training_client_from_state(brought.checkpoint_path).get_info().lora_rank
    4
    """
    adapter = read_adapter(Path(directory), base_model, lora_config)
    return _start(
        "upload",
        partial(_upload, adapter, project_id, _Counts(progress)),
        service,
        base_url,
        api_key,
    )


def push_to_hub(
    tinker_path: str,
    repo_id: str | None = None,
    *,
    public: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    create_pr: bool = False,
    allow_patterns: Sequence[str] | None = None,
    ignore_patterns: Sequence[str] | None = None,
    model_card: bool = True,
    progress: Callable[[Progress], None] | None = None,
    service: ServiceClient | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    token: str | None = None,
    endpoint: str | None = None,
) -> PushedCheckpoint:
    """Push a checkpoint to the Hugging Face Hub as a PEFT adapter. Blocks until the push is
    complete.

    The checkpoint is downloaded into a temporary folder, as :func:`download` does, and uploaded as
    one commit. A missing repository or branch is created.

    Args:
        tinker_path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.
        repo_id: The repository. None means ``<user>/tinker-<base model>-<run>``.
        public: Whether to make a new repository public.
        revision: The branch. None means the main branch.
        commit_message: The commit message. None generates a message.
        create_pr: Whether to open a pull request with the commit.
        allow_patterns: Upload only files that match one of these ``fnmatch`` patterns. None means
            all files.
        ignore_patterns: Skip files that match one of these ``fnmatch`` patterns. Optional.
        model_card: Whether to add a README.md if neither the checkpoint nor the repository has one.
        progress: A function called with every piece of the download. Optional.
        service: The client whose session and credential to use. None creates one for this call.
        base_url: The server, as for ServiceClient. Only valid without ``service``.
        api_key: The credential, as for ServiceClient. Only valid without ``service``.
        token: The hub's access token. None means the token stored by ``hf auth login``.
        endpoint: The address of the hub; requires huggingface_hub 1.4 or newer. None means
            HF_ENDPOINT, or the public hub.

    Returns:
        The description of the pushed checkpoint.

    Raises:
        ImportError: ``huggingface_hub`` is not installed.
        TinkerError: You are not logged in to the hub, the files are not a PEFT adapter, the
            repository contains another checkpoint, or the hub rejects the upload. The errors of
            :func:`download` are possible too.
    """
    hub = _merging.connect(token, endpoint)
    with tempfile.TemporaryDirectory(prefix="tinker-") as folder:
        done = download(
            tinker_path,
            folder,
            form="auto",
            progress=progress,
            service=service,
            base_url=base_url,
            api_key=api_key,
        ).result()
        upload = _merging.Upload(
            tinker_path=tinker_path,
            folder=done.destination,
            repo_id=repo_id,
            public=public,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            model_card=model_card,
        )
        repo, url = _merging.push(hub, upload)
    return PushedCheckpoint(
        checkpoint_path=tinker_path, repo_id=repo, revision=revision, public=public, url=url
    )


@suggest_argument
def merge(
    adapter: str | os.PathLike[str],
    base: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Callable[[Progress], None] | None = None,
    service: ServiceClient | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
) -> MergedModel:
    """Merge an adapter into its base model, and write the whole model. Blocks until all files are
    written.

    The files have the names and the precision of the base model's; its configuration and tokenizer
    are copied. Some rows of one matrix at a time are in memory, and neither PyTorch nor PEFT is
    needed. If the adapter changes an output layer (``lm_head``) that the base model shares with its
    input layer, the merged model gets one of its own, and its input layer stays as it is.

    Args:
        adapter: The checkpoint, ``tinker://<training run>/<kind>/<name>``, which is downloaded as
            by :func:`download`; or a folder or an archive with ``adapter_config.json`` and
            ``adapter_model.safetensors``.
        base: The folder of the base model: ``config.json`` and safetensors files in bfloat16,
            float16, float32 or float64.
        out: The folder of the merged model, which must be new or empty. An interrupted merge leaves
            no ``config.json`` in it, and can be run again.
        progress: A function called with every piece that is written. Optional.
        service: The client whose session and credential to use. None creates one, if the adapter is
            on a server.
        base_url: The server, as for ServiceClient. Only valid without ``service``.
        api_key: The credential, as for ServiceClient. Only valid without ``service``.

    Returns:
        The description of the merged model.

    Raises:
        FileExistsError: ``out`` is not empty.
        FileNotFoundError: A folder or file of the adapter or the base model is missing.
        ValueError: The adapter does not fit the base model, or is of another kind, or the base
            model is quantized. The message says what, and nothing is written.
        TinkerError: An archive is not safe. The errors of :func:`download` are possible too.
    """
    place = Path(out)
    _merging.check_empty(place)
    model = _merging.read_model(Path(base))
    counts = _Counts(progress)
    counts.expect(model.files)
    with tempfile.TemporaryDirectory(prefix="tinker-") as scratch:
        if str(adapter).startswith(SCHEME):
            future = download(
                str(adapter), scratch, service=service, base_url=base_url, api_key=api_key
            )
            folder = future.result().destination
        elif Path(adapter).is_file():
            _checkpoints.unpack(Path(adapter), folder := Path(scratch))
        else:
            folder = Path(adapter)
        merged = _merging.merge(folder, model, place, counts.note)
    return MergedModel(
        destination=place, nbytes=merged.nbytes, has_new_head=merged.head is not None
    )


def _check_form(form: DownloadSource, path: ParsedCheckpointTinkerPath) -> None:
    if form not in ("auto", "external", "archive"):
        raise ValueError(f"form must be auto, external or archive, got {form!r}")
    if form == "external" and path.checkpoint_type == "sampler":
        raise ValueError(f"{path.tinker_path} cannot be exported: only training checkpoints can")
    if form == "archive" and path.checkpoint_type == "external":
        raise ValueError(f"{path.tinker_path} is a set of files, not an archive")


def _start(
    operation: str,
    job: Callable[[ServiceClient], Awaitable[T]],
    service: ServiceClient | None,
    base_url: str | None,
    api_key: str | None,
) -> APIFuture[T]:
    """Start a job with a service client, or with one of its own that is closed after it."""
    from tinker.service_client import ServiceClient

    if service is not None and (base_url is not None or api_key is not None):
        raise ValueError("base_url and api_key come from the service client; pass neither")
    client = service or ServiceClient(base_url=base_url, api_key=api_key)
    is_own = service is None
    return run(_runtime_of(client), operation, lambda _: _run_job(job, client, is_own))


async def _run_job(
    job: Callable[[ServiceClient], Awaitable[T]],
    service: ServiceClient,
    is_own: bool,
) -> T:
    async with service if is_own else nullcontext():
        return await job(service)


def _runtime_of(service: ServiceClient) -> Runtime:
    return service._runtime()  # pyright: ignore[reportPrivateUsage]


# How a checkpoint becomes files. Everything below runs on the loop, with the disk in other threads.


async def _upload(
    adapter: LocalAdapter, project_id: str | None, counts: _Counts, service: ServiceClient
) -> UploadedCheckpoint:
    """Send the files and finish."""
    runtime = _runtime_of(service)
    path, sizes = await Uploading(
        adapter=adapter,
        project_id=project_id or runtime.config.project_id,
        transport=runtime.transport,
        operations=service.create_rest_client(),
        watch=counts.note,
    ).run()
    return UploadedCheckpoint(
        checkpoint_path=path,
        base_model=adapter.base_model,
        files=tuple(sizes),
        nbytes=sum(sizes.values()),
    )


async def _download(
    path: ParsedCheckpointTinkerPath,
    place: Path,
    form: DownloadSource,
    overwrite: bool,
    counts: _Counts,
    service: ServiceClient,
) -> Download:
    """Make the files, fetch them, and put them in place."""
    fetching = _Fetching(service, place, counts)
    if path.checkpoint_type == "external":
        await fetching.files_of(path.tinker_path)
    elif form == "archive" or path.checkpoint_type == "sampler":
        await fetching.archive_of(path.tinker_path)
    else:
        await fetching.export(path.tinker_path, may_be_archive=form == "auto")
    return await asyncio.to_thread(fetching.put_in_place, path.tinker_path, overwrite)


class _Fetching:
    """Files on their way into one folder."""

    def __init__(self, service: ServiceClient, place: Path, counts: _Counts) -> None:
        self._service, self._place, self._counts = service, place, counts
        self._runtime, self._rest = _runtime_of(service), service.create_rest_client()
        self._partial = place.with_name(f"{place.name}.partial")
        self._ready = self._partial / "files"

    async def export(self, tinker_path: str, *, may_be_archive: bool) -> None:
        """Fetch the files of a temporary export; the archive where the server exports nothing and
        that will do.
        """
        training = await self._service.create_training_client_from_state(tinker_path)
        try:
            saved = await training.save_weights_external(_EXPORT_NAME, MIN_TTL_SECONDS)
        except APIStatusError as error:
            if not (may_be_archive and retry.is_absent(error)):
                raise
            return await self.archive_of(tinker_path)
        try:
            await self.files_of(saved.path)
        finally:
            with suppress(APIError, CircuitOpenError):  # many servers free it with the session only
                await training.unload_model()
            try:
                await self._rest.delete_checkpoint_from_tinker_path(saved.path)
            except (APIError, CircuitOpenError) as error:
                logger.warning(
                    "could not delete the export %s, which expires within an hour: %s",
                    saved.path,
                    error,
                )

    async def files_of(self, external_path: str) -> None:
        """Fetch every file of an external checkpoint."""
        fetched = await self._fetch_all(partial(self._external_links, external_path))
        for name, file in fetched.items():
            await asyncio.to_thread(_move, file, self._ready / name)

    async def archive_of(self, tinker_path: str) -> None:
        """Fetch the one archive of a checkpoint, and unpack it."""
        for archive in (await self._fetch_all(partial(self._archive_link, tinker_path))).values():
            await asyncio.to_thread(_checkpoints.unpack, archive, self._ready)

    async def _external_links(self, external_path: str) -> _UrlsUntil:
        answer = await self._rest.get_external_weights_urls(external_path)
        return answer.urls, answer.expires

    async def _archive_link(self, tinker_path: str) -> _UrlsUntil:
        try:
            answer = await self._rest.get_checkpoint_archive_url_from_tinker_path(tinker_path)
        except APIStatusError as error:
            if retry.is_absent(error) or retry.is_lost(error):
                error.add_note(
                    f"{tinker_path} does not exist, or this server offers no downloads of its kind"
                )
            raise
        return {_ARCHIVE: answer.url}, answer.expires

    async def _fetch_all(
        self, ask: Callable[[], Awaitable[_UrlsUntil]]
    ) -> Mapping[PurePosixPath, Path]:
        """Fetch every file, and return where each is; TinkerError for a name that is not one within
        a folder.
        """
        transport, room = self._runtime.transport, asyncio.Semaphore(FILES_AT_ONCE)
        links, checked = _SignedUrls(ask, self._runtime.clock), _checkpoints.SafeNames()
        names = {name: checked.check(name) for name in await links.names()}
        await asyncio.to_thread(self._start_afresh)
        self._counts.expect(names)
        async with open_files(transport.engine, transport.config) as client:
            source = FileSource(client=client, transport=transport, url=links.url)

            async def one(name: str) -> Path:
                place = self._partial / "parts" / hashlib.sha256(name.encode()).hexdigest()
                async with room:
                    await fetch(source, name, place, partial(self._counts.note, name))
                return place

            return await run_together({path: one(name) for name, path in names.items()})

    def _start_afresh(self) -> None:
        """Empty the folder of whole files, which are made of parts again, so that they are checked
        again.
        """
        shutil.rmtree(self._ready, ignore_errors=True)
        self._ready.mkdir(parents=True)

    def put_in_place(self, tinker_path: str, overwrite: bool) -> Download:
        """Move the complete folder into place, and remove temporary files."""
        sizes = {
            file.relative_to(self._ready).as_posix(): file.stat().st_size
            for file in sorted(self._ready.rglob("*"))
            if file.is_file()
        }
        old = self._partial / "replaced"
        if self._place.exists():
            if not overwrite:
                raise FileExistsError(f"{self._place} already exists")
            os.replace(self._place, old)
        os.replace(self._ready, self._place)
        shutil.rmtree(self._partial, ignore_errors=True)
        return Download(
            checkpoint_path=tinker_path,
            destination=self._place,
            files=tuple(sizes),
            nbytes=sum(sizes.values()),
        )


def _move(file: Path, place: Path) -> None:
    """Link rather than move, so that a complete file serves a next call if this one fails at
    another file.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)


class _SignedUrls:
    """Signed URLs by file name, asked for again before they expire."""

    def __init__(self, ask: Callable[[], Awaitable[_UrlsUntil]], clock: Clock) -> None:
        self._ask, self._clock = ask, clock
        self._urls: Mapping[str, str] = {}
        self._until = 0.0
        self._asking = asyncio.Lock()

    async def names(self) -> Sequence[str]:
        """Return the files there are; TinkerError for none."""
        await self._renew()
        if not self._urls:
            raise TinkerError("the checkpoint has no files")
        return sorted(self._urls)

    async def url(self, name: str, refused: str | None) -> str:
        """Return a URL that is good for a new request, another one than ``refused``; TinkerError
        when the file is gone.
        """
        async with self._asking:
            if self._until - self._clock.wall() < FRESH_SECONDS or self._urls.get(name) == refused:
                await self._renew()
        if name not in self._urls:
            raise TinkerError(f"the checkpoint no longer has a file {name!r}")
        return self._urls[name]

    async def _renew(self) -> None:
        """Request the URLs; where a server's are shorter than what counts as fresh, each request
        has a new one.
        """
        self._urls, expires = await self._ask()
        self._until = in_utc(expires).timestamp()


class _Counts:
    """The sum over the files that are under way."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._files: dict[str, tuple[int, int | None]] = {}

    def expect(self, names: Iterable[str]) -> None:
        """Announce the files that will come."""
        self._files = dict.fromkeys(names, (0, None))

    def note(self, name: str, done: int, total: int | None) -> None:
        """Note how far one file is, and report the sum."""
        self._files[name] = (done, total)
        if self._progress is None:
            return
        totals = [total for _, total in self._files.values()]
        known = [total for total in totals if total is not None]
        self._progress(
            Progress(
                done_nbytes=sum(done for done, _ in self._files.values()),
                total_nbytes=sum(known) if len(known) == len(totals) else None,
                files=len(self._files),
            )
        )
