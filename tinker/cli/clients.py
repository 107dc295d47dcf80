"""Clients for commands; paged lists, costs, and inputs of models as users give them."""

from __future__ import annotations

import datetime
import importlib.util
import json
import logging
import re
import shlex
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

import tinker
from tinker import _chat
from tinker._chat import has_template as has_template
from tinker._tokenizers import TokenizerSource, find_absence, is_of_hub, load, resolve
from tinker.cli.options import GlobalOptions
from tinker.cli.output import CommandFailed, format_count, progress, read_message, say, say_once
from tinker.cli.reading import Prompt, normalize_line

if TYPE_CHECKING:
    from tinker_wire.models import ClientSessionFinishReasonType, SupportedModel
    from tinker_wire.runtime import Request
    from tokenizers import Tokenizer

    from tinker._http.auth import Credential
    from tinker._http.retry import Policy
    from tinker._runtime import Runtime

T = TypeVar("T")
Search = TypeVar(
    "Search", "tinker.types.CheckpointSearchRequest", "tinker.types.SessionSearchRequest"
)
Found = TypeVar(
    "Found", "tinker.types.CheckpointSearchResponse", "tinker.types.SessionSearchResponse"
)


CLOSE_SECONDS = 2.0
# in the metadata of a run of `tinker train --resume`: the ID of the run that it continues
RESUMED = "resumed"
TRAIN = ":train:"  # in the ID of a run, between the session and a number
_SEARCH_PAGE = 200
_SEARCHED_RUNS = 100

# The clients are imported on use, so that the help of commands is quick.


def config_of(options: GlobalOptions, api_key: str | None = None) -> tinker.Config:
    """Load the settings. ``api_key`` None means the one of the environment. ValueError for an
    invalid base URL.
    """
    from tinker._basics.config import load_config

    return load_config(
        base_url=options.base_url, api_key=api_key, patience_seconds=options.short_patience
    )


def check_credential(config: tinker.Config) -> None:
    """Raise CommandFailed if the server is the hosted service and there is no credential."""
    from tinker._http import auth

    given = config.api_key or config.credential_cmd
    if config.is_hosted and given is None and auth.default_key(config.credentials_file) is None:
        raise CommandFailed(
            "No credential for the hosted service",
            "Run `tinker auth login`, or set TINKER_API_KEY.",
            "Without an account, use the local server: tinker --base-url local:// ...",
        )


def connect(options: GlobalOptions, api_key: str | None = None) -> Runtime:
    """Open connections without a session, closed when the command ends. CommandFailed if a key is
    needed and missing.
    """
    from tinker._runtime import open_runtime
    from tinker._session import Description

    check_credential(config := config_of(options, api_key))
    runtime = open_runtime(config, Description(user_metadata={}), observers=_observers(options))
    click.get_current_context().call_on_close(partial(_close, runtime))
    _set_retries_logged(False)
    return runtime


def _observers(options: GlobalOptions) -> list[tinker.observing.Observer]:
    """Return the observer that reports when a server in this process loads its model, which can
    take long.
    """
    # Shared by all clients of the command.
    reported: set[str] = click.get_current_context().meta.setdefault("tinker.loading", set())

    def report_loading(event: tinker.observing.Event) -> None:
        if isinstance(event, tinker.observing.ModelLoading) and event.what not in reported:
            reported.add(event.what)
            say(f"Loading {event.what} ...")

    return [report_loading] if options.format == "table" else []


def _set_retries_logged(logged: bool) -> None:
    """Log retries or not. A command that retries for seconds only reports them in its error."""
    log = logging.getLogger("tinker")
    log.removeFilter(_is_no_retry)
    if not logged:
        log.addFilter(_is_no_retry)
        click.get_current_context().call_on_close(partial(log.removeFilter, _is_no_retry))


def _is_no_retry(record: logging.LogRecord) -> bool:
    return record.funcName != "report_retry"  # of tinker/_http/observers.py


def _close(runtime: Runtime) -> None:
    from tinker._runtime import run

    with suppress(TimeoutError):
        run(runtime, "close", lambda _: runtime.transport.engine.aclose()).result(CLOSE_SECONDS)


def send(
    runtime: Runtime, request: Request[T], policy: Policy, credential: Credential | None = None
) -> T:
    """Send a request that no client has a method for, and return the decoded response."""
    from tinker._runtime import run

    async def ask(_: tinker.APIFuture[T]) -> T:
        return (await runtime.transport.send(request, policy, credential=credential)).value

    return run(runtime, request.operation, ask).result()


def rest_client(options: GlobalOptions) -> tinker.RestClient:
    """Make a client for runs, checkpoints and sessions."""
    return tinker.RestClient(connect(options))


def admin_client(options: GlobalOptions) -> tinker.AdminClient:
    """Make a client for the administration of an organization."""
    return tinker.AdminClient(connect(options))


@contextmanager
def service_client(
    options: GlobalOptions, *, interactive: bool = False, reports: bool = False
) -> Generator[tinker.ServiceClient]:
    """Open a session for the block. Closing it takes at most two seconds.

    Requests are retried for ``--patience`` seconds; without it for minutes, as in a script, or if
    ``interactive`` for ten seconds. With ``reports``, a server on this machine gets telemetry,
    unless ``TINKER_TELEMETRY`` says something else.
    """
    from tinker._basics.config import is_loopback, is_telemetry_unset

    check_credential(config := config_of(options))
    is_wanted = (
        reports and is_telemetry_unset() and is_loopback(urlsplit(config.base_url).hostname or "")
    )
    observers = _observers(options)
    service = tinker.ServiceClient(
        {"made_by": "tinker cli"},
        base_url=options.base_url,
        patience_seconds=options.short_patience if interactive else options.patience_seconds,
        observers=observers,
        telemetry=is_wanted or None,
    )
    _set_retries_logged(not interactive)
    reason: ClientSessionFinishReasonType = "interrupted"
    try:
        yield service
        reason = "success"
    except Exception:
        reason = "errored"
        raise
    finally:
        with suppress(TimeoutError, tinker.TinkerError):
            service.close(reason).result(CLOSE_SECONDS)


def find_run(rest: tinker.RestClient, text: str) -> str:
    """Return the ID of the latest run with this name, of the only one whose ID has it as its
    beginning, or else the text.

    Several runs of the name are reported.
    """
    if ":" in text:
        return text
    with suppress(tinker.APIStatusError):  # a server without the list takes IDs
        runs = rest.list_training_runs(_SEARCHED_RUNS).result().training_runs
        found = [
            run.training_run_id for run in runs if (run.user_metadata or {}).get("name") == text
        ]
        if len(found) > 1:
            say(f"{len(found)} runs are named {text!r}; this is the latest")
        begun = [
            run.training_run_id
            for run in runs
            if len(text) > 3 and run.training_run_id.startswith(text)
        ]
        return found[0] if found else begun[0] if len(begun) == 1 else text
    return text


class Listing(NamedTuple, Generic[T]):
    """The fetched items of a list, and the length of the whole list."""

    items: list[T]
    total: int

    def to_json(self, name: str) -> dict[str, object]:
        """Return the items under a name, their number, and the total."""
        return {name: self.items, "shown": len(self.items), "total": self.total}

    def title(self, what: str) -> str:
        """Return the number of items as a title, with the number of those not shown."""
        hidden = self.total - len(self.items)
        more = f" ({hidden} more; use --limit to see them)" if hidden > 0 else ""
        return f"{format_count(len(self.items), what)}{more}"


#: Fetches a page by limit and offset, with the length of the whole list if the server reports it.
FetchPage = Callable[[int, int], tuple[list[T], int | None]]


def fetch_pages(
    options: GlobalOptions,
    description: str,
    fetch: FetchPage[T],
    limit: int,
    page: int,
    offset: int = 0,
) -> Listing[T]:
    """Fetch ``limit`` items, all for 0, after the first ``offset``, and show the progress."""
    items: list[T] = []
    total: int | None = None
    with progress(options, description, None) as advance:
        while not limit or len(items) < limit:
            count = min(page, limit - len(items)) if limit else page
            new, known = fetch(count, offset + len(items))
            total = None if known is None else max(0, known - offset)
            items += new[:count]
            advance(len(items), total=min(total, limit) if total is not None and limit else total)
            if len(new) < count or (total is not None and len(items) >= total):
                break
    return Listing(items, max(total or 0, len(items)))


def search_pages(
    options: GlobalOptions,
    description: str,
    request: Search,
    send: Callable[[Search], tinker.APIFuture[Found]],
    items: Callable[[Found], Sequence[T]],
    limit: int,
) -> list[T]:
    """Search for ``limit`` items, for all with 0, page by page, and show the progress."""
    found: list[T] = []
    with progress(options, description, None) as advance, warnings.catch_warnings():
        # that the operation may change is for those who write programs
        warnings.simplefilter("ignore")
        while not limit or len(found) < limit:
            count = min(_SEARCH_PAGE, limit - len(found)) if limit else _SEARCH_PAGE
            page = send(request.model_copy(update={"limit": count})).result()
            found += items(page)[:count]
            advance(len(found))
            if page.next_cursor is None:
                break
            request = request.model_copy(update={"cursor": page.next_cursor})
        else:
            say("There are more; use --limit to see them.")
    return found


_LONGEST = datetime.timedelta(days=14)  # what servers answer at once


def next_hour() -> datetime.datetime:
    """Return the end of the current hour; usage is counted by the hour."""
    now = datetime.datetime.now(datetime.UTC)
    return now.replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)


def fetch_usage(
    options: GlobalOptions,
    client: tinker.RestClient | tinker.AdminClient,
    since: datetime.datetime,
    until: datetime.datetime,
) -> list[tinker.types.BillingUsageResponse]:
    """Fetch the usage from ``since`` until before ``until``, in as many requests as
    the time takes.
    """
    answers: list[tinker.types.BillingUsageResponse] = []
    whole = (until - since).days
    with progress(options, "Fetching usage", whole) as advance:
        while not answers or since < until:
            end = min(until, since + _LONGEST)
            answers.append(client.get_billing_usage(since, end).result())
            since = end
            advance(whole - (until - since).days)
    return answers


def read_prices(path: Path | None) -> Mapping[str, tinker.usage.Price] | None:
    """Read the price list given, else the one that the environment names. None without one;
    ValueError for a wrong one.
    """
    from tinker._basics.config import prices_file

    chosen = path or prices_file()
    return None if chosen is None else tinker.usage.load_prices(chosen)


def cost_of(
    prices: Mapping[str, tinker.usage.Price] | None,
    counts: Mapping[str | None, tinker.usage.TokenCounts],
) -> float | None:
    """Return what the tokens of each model cost; None without prices. ValueError for a model
    without one.
    """
    if prices is None:
        return None
    return sum(
        tinker.usage.price_of(prices, model).cost(tokens) for model, tokens in counts.items()
    )


def to_value(counts: tinker.usage.TokenCounts) -> dict[str, int]:
    """Return tokens as JSON shows them."""
    import attrs

    return attrs.asdict(counts)


def count_properties(
    options: GlobalOptions, counts: tinker.usage.TokenCounts, cost: float | None
) -> Sequence[tuple[str, str]]:
    """Return tokens and their cost as properties; the hosted service alone has a cost without
    prices, which is unknown.
    """
    rows = [
        ("Trained", counts.trained),
        ("Prefilled", counts.prefilled),
        ("Prefilled, cached", counts.cached),
        ("Sampled", counts.sampled),
    ]
    shown = [(f"{name} (tokens)", f"{number:,}") for name, number in rows if number]
    return (
        shown
        if cost is None and not config_of(options).is_hosted
        else [*shown, ("Cost", format_cost(cost))]
    )


def format_cost(cost: float | None) -> str:
    """Format a cost, in the currency of the price list.

    >>> format_cost(0.0000123), format_cost(12.3)
    ('0.0000123', '12.30')
    """
    if cost is None:
        return "unknown: give a price list with --prices"
    return (
        f"{cost:.2f}"
        if cost == 0 or cost >= 0.01
        else f"{cost:.3g}"
        if cost >= 0.0001
        else f"{cost:.10f}".rstrip("0")
    )


SAMPLED_CHECKPOINT = (
    "give the name of its run or its path as the model: tinker://RUN/sampler_weights/NAME"
)
TRAINED_CHECKPOINT = "give the name of its run or its path: --from tinker://RUN/weights/NAME"


def parse_path(tinker_path: str) -> tinker.ParsedCheckpointTinkerPath:
    """Parse a checkpoint path; CommandFailed when it is not one."""
    try:
        return tinker.ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    except ValueError:
        expected = (
            "It must be tinker://RUN/KIND/NAME, with KIND weights, sampler_weights or "
            "external_weights."
        )
        advice = (
            _explain_folder(tinker_path)
            or "`tinker checkpoint list` shows the paths; with --run-id, those of one run."
        )
        raise CommandFailed(f"Invalid checkpoint path: {tinker_path}", expected, advice) from None


def _explain_folder(text: str) -> str | None:
    """Return how to make a checkpoint of a folder; None if the text does not name one."""
    folder = shlex.quote(text)
    return (
        f"To make a checkpoint of this folder, run: tinker checkpoint upload {folder}"
        if Path(text).is_dir()
        else None
    )


def find_path(
    rest: tinker.RestClient, text: str, *, to_train: bool = False
) -> tinker.ParsedCheckpointTinkerPath:
    """Parse a checkpoint path, or find the latest checkpoint of the run with this ID or name.
    CommandFailed for neither.
    """
    if "/" in text:
        return parse_path(text)
    if (path := _find_latest(rest, text, to_train=to_train)) is None:
        listed = (
            "`tinker run list` shows the runs, and `tinker checkpoint list` the "
            "paths of their checkpoints."
        )
        raise CommandFailed(
            f"{text} is not a run, and not the path of a checkpoint",
            _explain_folder(text) or listed,
        )
    return parse_path(path)


def _find_latest(rest: tinker.RestClient, name: str, *, to_train: bool) -> str | None:
    """Return the path of the latest checkpoint of a run; None if there is no such run.
    CommandFailed if it has none.
    """
    try:
        run = rest.get_training_run(find_run(rest, name)).result()
    except tinker.NotFoundError:
        return None
    found = run.last_checkpoint if to_train else run.last_sampler_checkpoint
    if found is None:
        advice = f"`tinker checkpoint list --run-id {shlex.quote(name)}` shows those that it has."
        raise CommandFailed(
            f"The run {name} has no checkpoint to {'train on' if to_train else 'sample from'}",
            advice,
        )
    say(f"{name} is {found.tinker_path}")
    return found.tinker_path


def check_start(model: str | None, path: str | None) -> None:
    """Raise CommandFailed for a checkpoint given as a model, and for a path that is none or names
    weights to sample from.
    """
    if model is not None and model.startswith("tinker://"):
        raise CommandFailed(
            f"{model} is a checkpoint, not a base model", f"To start from one, {TRAINED_CHECKPOINT}"
        )
    if path is not None and "://" not in path and "/" in path:
        parse_path(path)
    if path is not None and "/sampler_weights/" in path:
        advice = (
            "`tinker train` also saves one to train on: --from "
            f"{path.replace('/sampler_weights/', '/weights/')}"
        )
        raise CommandFailed(
            f"{path} is a sampler checkpoint, from which training cannot continue", advice
        )


def train_from(
    service: tinker.ServiceClient,
    path: str,
    base_model: str | None = None,
    metadata: dict[str, str] | None = None,
) -> tinker.TrainingClient:
    """Create a training client from a checkpoint, with a new optimizer state where it has none, as
    one that was uploaded.
    """
    try:
        return service.create_training_client_from_state_with_optimizer(
            path, base_model, user_metadata=metadata
        ).result()
    except tinker.RequestFailedError as error:
        if "no optimizer state" not in str(error):
            raise
    say("This checkpoint has no optimizer state, so the optimizer begins from scratch.")
    return service.create_training_client_from_state(
        path, base_model, user_metadata=metadata
    ).result()


def first_sampleable(models: Sequence[SupportedModel]) -> str:
    """Return the first model that can be sampled. CommandFailed where the server offers none."""
    if named := [
        entry.model_name
        for entry in models
        if entry.model_name is not None and entry.sampleable is not False
    ]:
        return named[0]
    raise CommandFailed(
        "The server offers no model to sample from", "Give a checkpoint with --model."
    )


@contextmanager
def explain_refusal(
    service: tinker.ServiceClient, model: str, checkpoint_advice: str = SAMPLED_CHECKPOINT
) -> Generator[None]:
    """Explain a refused sampling client: a training checkpoint, an adapter's folder, a misspelled
    model, or no path.
    """
    from tinker.local.engines import explain_adapter
    from tinker_records import find_closest

    try:
        yield
    except (tinker.APIStatusError, tinker.RequestFailedError) as error:
        if model.startswith("tinker://") and "/weights/" in model:
            advice = (
                "To save weights that can be sampled, run: tinker checkpoint create --from "
                f"{model} --sampler"
            )
            raise CommandFailed(
                f"{model} is a training checkpoint, which cannot be sampled", advice
            ) from error
        if (problem := explain_adapter(Path(model))) is not None:
            raise CommandFailed(problem) from error
        names = [
            one.model_name
            for one in service.get_server_capabilities().supported_models
            if one.model_name
        ]
        closest = None if model in names else find_closest(model, names)
        if closest is not None and closest not in "\n".join(
            [read_message(error), *getattr(error, "__notes__", ())]
        ):
            error.add_note(f"Did you mean {closest}?")
        if "/" not in model and find_run(service.create_rest_client(), model) != model:
            error.add_note(
                f"{model} is a run; to start from its latest checkpoint: --from "
                f"{shlex.quote(model)}"
            )
        elif closest is None and names and model not in names and "://" not in model:
            error.add_note(
                f"To use a checkpoint, {checkpoint_advice}; `tinker checkpoint "
                "list` shows the paths."
            )
        raise


def create_sampler(service: tinker.ServiceClient, model: str) -> tinker.SamplingClient:
    """Create the client that samples from a base model, from the checkpoint at a path, or from the
    latest one of a run.
    """
    if "/" not in model and all(
        model != one.model_name for one in service.get_server_capabilities().supported_models
    ):
        model = _find_latest(service.create_rest_client(), model, to_train=False) or model
    with explain_refusal(service, model):
        if model.startswith("tinker://"):
            return service.create_sampling_client(model_path=model).result()
        return service.create_sampling_client(base_model=model).result()


class Capacity(NamedTuple):
    """The maximum number of tokens of a model; None (no limit) if the server does not report it."""

    model: str
    tokens: int | None

    def is_exceeded(self, count: int) -> bool:
        """Return whether this number of tokens is too large."""
        return 0 < (self.tokens or 0) < count

    def __str__(self) -> str:
        return f"{self.model} takes {self.tokens:,}"


_ESCAPES = {r"\n": "\n", r"\t": "\t", "\\\\": "\\"}


def read_stops(given: Sequence[str]) -> list[str]:
    r"""Return the stops of a command line, in which ``\n``, ``\t`` and ``\\`` are a newline, a tab
    and a backslash.

    >>> read_stops([r"\n", r"\d"])
    ['\n', '\\d']
    """
    return [re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], stop) for stop in given]


class StopCutter:
    """A filter that passes text up to the first stop sequence. It holds back an end that may be the
    start of one.

    >>> cutter = StopCutter(["<end>"])
    >>> cutter.add("Yes <e"), cutter.add("m> no <end> and"), cutter.is_over
    ('Yes ', '<em> no ', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.is_over: bool = False

    def add(self, text: str) -> str:
        """Return the text that can be shown now; nothing after a stop."""
        if self.is_over:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.is_over = bool(found)
        end = min(found) if found else len(self._held) - self._count_held()
        shown, self._held = self._held[:end], "" if found else self._held[end:]
        return shown

    def end(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _count_held(self) -> int:
        """Return the number of characters at the end that may be the start of a stop."""
        beginnings = (stop[:count] for stop in self._stops for count in range(1, len(stop)))
        return max((len(one) for one in beginnings if self._held.endswith(one)), default=0)


# a cached tokenizer has one of them
_CACHED_FILES = ("tokenizer_config.json", "tokenizer.json", "config.json")
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# Keys of a tokenizer_config.json that do not change tokenizer.json, with the allowed values of
# some.
_SETTINGS: dict[str, tuple[object, ...]] = {
    "clean_up_tokenization_spaces": (False,),
    "tokenizer_class": ("PreTrainedTokenizerFast", "TokenizersBackend"),
}
_HARMLESS = {
    *_NAMED_TOKENS,
    *_SETTINGS,
    "backend",
    "chat_template",
    "is_local",
    "model_input_names",
    "model_max_length",
}
_MODEL_TYPES = ("llama", None)  # for which transformers has no tokenizer class of its own
_OTHER_FILES = ("special_tokens_map.json", "added_tokens.json")


def load_tokenizer(named: TokenizerSource | str) -> Any:
    """Load a tokenizer, from its files if it is a plain one.

    CommandFailed if it is not on this machine and cannot be fetched. The hub is asked once.
    """
    # a line for each retry
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)
    logging.getLogger("transformers.tokenization_utils_base").addFilter(_is_not_about_length)
    source = resolve("", named) if isinstance(named, str) else named
    if (plain := read_tokenizer(source)) is not None:
        return plain
    if is_of_hub(source) and importlib.util.find_spec("huggingface_hub") is not None:
        absence = find_absence(
            source.name, _CACHED_FILES, kind="tokenizer", revision=source.revision
        )
        if absence is not None:
            raise CommandFailed(
                f"cannot load the tokenizer {source.name!r}: {absence}; give a directory"
            )
    return load(source)


def _is_not_about_length(record: logging.LogRecord) -> bool:
    # the server reports its limit
    return not record.getMessage().startswith("Token indices sequence length is longer")


def find_tokenizer(sampler: tinker.SamplingClient, named: str | None) -> Any:
    """Load the named tokenizer with :func:`load_tokenizer`, else that of the sampler's model."""
    if named:
        return load_tokenizer(named)
    source = sampler._sampler.tokenizer().result()  # pyright: ignore[reportPrivateUsage]
    return read_tokenizer(source) or load(source)


class FileTokenizer:
    """A tokenizer that encodes and decodes like that of transformers, which is loaded only for
    other attributes.
    """

    def __init__(
        self,
        source: TokenizerSource,
        tokenizer: Tokenizer,
        special: dict[str, int],
        has_template: bool,
    ) -> None:
        self._source, self._tokenizer, self._has_template = source, tokenizer, has_template
        self._special = special  # ids by the token's name, such as eos_token

    @property
    def all_special_ids(self) -> list[int]:
        return list(dict.fromkeys(self._special.values()))

    @property
    def eos_token_id(self) -> int | None:
        return self._special.get("eos_token")

    @property
    def eos_token(self) -> str | None:
        return (
            self._tokenizer.id_to_token(self._special["eos_token"])
            if "eos_token" in self._special
            else None
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    @property
    def chat_template(self) -> object:
        return self.__getattr__("chat_template") if self._has_template else None

    def __getattr__(self, name: str) -> Any:
        return getattr(load(self._source), name)


def read_tokenizer(source: TokenizerSource) -> FileTokenizer | None:
    """Read a tokenizer from its directory; None if it needs more than its tokenizer.json."""
    folder = Path(source.name)
    if importlib.util.find_spec("tokenizers") is None or any(
        (folder / name).exists() for name in _OTHER_FILES
    ):
        return None
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        if not _is_plain(settings, _model_type(folder)):
            return None
        tokenizer = _open(folder / "tokenizer.json")
    except Exception:  # noqa: BLE001 - tokenizers raises Exception; transformers then reports the problem
        return None
    special = {
        token.content: number
        for number, token in tokenizer.get_added_tokens_decoder().items()
        if token.special
    }
    named = {name: settings[name] for name in _NAMED_TOKENS if settings.get(name) is not None}
    if not all(isinstance(token, str) and token in special for token in named.values()):
        return None
    has_template = "chat_template" in settings or any(folder.glob("*chat_template*"))
    return FileTokenizer(
        source, tokenizer, {name: special[token] for name, token in named.items()}, has_template
    )


def _is_plain(settings: dict[str, object], model_type: object) -> bool:
    values = all(settings.get(name) in allowed for name, allowed in _SETTINGS.items())
    return values and settings.keys() <= _HARMLESS and model_type in _MODEL_TYPES


def _model_type(folder: Path) -> object:
    file = folder / "config.json"
    return json.loads(file.read_bytes()).get("model_type", "") if file.exists() else None


def _open(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class TextDecoder:
    """A decoder for display. Special tokens at the end of a sample are left out.

    ``skip_special`` leaves out all special tokens: with stop sequences, the model may continue
    after an end-of-text token.
    """

    def __init__(self, tokenizer: Any, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._special: frozenset[int] = frozenset(getattr(tokenizer, "all_special_ids", ()))

    def decode(self, token_ids: Sequence[int], /) -> str:
        """Return the text of a sample, or of its first tokens."""
        tokens = list(token_ids)
        while tokens and tokens[-1] in self._special:
            tokens.pop()
        return (
            str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special))
            if tokens
            else ""
        )


def note_answers(rows: Iterable[Mapping[str, Any]]) -> None:
    """Say how many rows are chats that end with an answer, which :func:`check_prompt` leaves out of
    the prompt.
    """
    chats = [line.get("prompt", line.get("messages")) for line in map(normalize_line, rows)]
    if count := sum(
        isinstance(chat[-1], dict) and chat[-1]["role"] == "assistant" for chat in chats if chat
    ):
        say(
            f"The last answers of {format_count(count, 'chat')} are left out: a prompt ends where "
            "its answer begins"
        )


def encode_prompt(
    tokenizer: Any, prompt: Prompt, line: Mapping[str, Any], chat_options: Mapping[str, object]
) -> list[int]:
    """Return the token ids of a prompt: of a text, of token ids, or of messages with the tools and
    options of their line.

    What the chat template does not write of these is said.
    """
    if isinstance(prompt, str):
        return _chat.encode_prompt_text(tokenizer, prompt)
    if not isinstance(prompt[0], dict):
        return prompt
    options = _chat.read_options(chat_options, line.get("chat_template_kwargs"))
    tokens, unwritten = _chat.encode_prompt(tokenizer, prompt, line.get("tools"), options)
    for one in unwritten:
        say_once(one.message[:1].upper() + one.message[1:])
    return tokens
