"""``tinker doctor`` and ``tinker conformance``: what works here, and what a server does."""

from __future__ import annotations

import asyncio
import email.utils
import importlib.metadata
import platform
import re
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, TypeVar

import click
from tinker_wire import CONTRACT_VERSION, models, runs
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Request

import tinker
from tinker._basics.config import Config, load_config
from tinker._basics.installation import PATCHING_PACKAGES, inspect_installation
from tinker._http import retry
from tinker._http.auth import find_source
from tinker._http.messages import ConnectionFacts, Purpose, RawResponse
from tinker._http.retry import ABSENT_STATUSES, ONE_SHOT, is_absent
from tinker._http.submission import FormAttempt, Negotiation, WireFormat
from tinker._runtime import Runtime, run
from tinker._version import DISTRIBUTION_VERSION
from tinker._wire import json, proto
from tinker.cli import clients
from tinker.cli.commands.installation import find_extra, find_version, list_packages
from tinker.cli.options import CommandURL, GlobalOptions, Option, command
from tinker.cli.output import CommandFailed, show, show_table
from tinker.errors import (
    APIResponseValidationError,
    APIStatusError,
    AuthenticationError,
    TinkerError,
)
from tinker.observing import ServerInfo
from tinker.types import Datum, ModelInput

T = TypeVar("T")
CheckStatus: TypeAlias = Literal["ok", "note", "FAIL"]
Support: TypeAlias = Literal["yes", "no", "unknown"]


class CheckResult(NamedTuple):
    """The result of one check."""

    name: str
    status: CheckStatus
    detail: str


class DoctorReport(NamedTuple):
    """The results of all checks. ``operations`` maps each operation of the contract to whether the
    server has it.

    ``info`` has the adaptations of clients to this server; None if no request was sent.
    ``connections`` lists those used.
    """

    base_url: str
    results: list[CheckResult]
    operations: dict[str, Support]
    info: ServerInfo | None = None
    connections: tuple[ConnectionFacts, ...] = ()

    @property
    def failures(self) -> list[str]:
        """Return the names of the checks that failed."""
        return [result.name for result in self.results if result.status == "FAIL"]


class Prober:
    """A client for checks, on the connections of ``runtime``. A request fails after ``seconds``
    (None: no limit).
    """

    def __init__(self, runtime: Runtime, seconds: float | None) -> None:
        self.runtime: Runtime = runtime
        self._seconds = seconds

    async def read(self, request: Request[T]) -> T:
        """Send a request and return the decoded response. TinkerError for a refusal and for a
        timeout.
        """
        return (await self._in_time(self.runtime.transport.send(request, ONE_SHOT))).value

    async def answer(self, request: Request[Any]) -> RawResponse:
        """Send a request and return the raw response with its headers. TinkerError as for
        :meth:`read`.
        """
        transport = self.runtime.transport
        return await self._in_time(transport.send_once(transport.prepare(request, Purpose.SESSION)))

    async def _in_time(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._seconds):
                return await answer
        except TimeoutError:
            raise TinkerError(f"no answer within {self._seconds:g} s (--patience)") from None


_UNKNOWN_MODEL = "doctor:train:0"
_NAMES = {"proto": "protobuf", "json": "JSON"}


async def check_wire(prober: Prober) -> CheckResult:
    """Negotiate the format as clients do, by a request for a model that does not exist."""
    choice = prober.runtime.config.wire
    wire = Negotiation(choice, prober.runtime.transport.findings)
    wire.note_config_answered((await prober.runtime.server.config()).answered)
    first = wire.form
    refusals: list[APIStatusError] = []

    accepted, forms = first, FormAttempt(wire, has_sparse=False)
    while (refusal := await _find_refusal(prober, accepted)) is not None:
        refusals.append(refusal)
        following = forms.next_after(refusal)
        if isinstance(following, APIStatusError):
            detail = (
                "the server does not tell what it reads; it answers "
                f"{following.status_code} to an unknown model"
            )
            return CheckResult(
                "wire",
                "note",
                f"{detail}. Training requests are sent as {_NAMES[first.media]} first",
            )
        accepted = following
    forms.accept()
    chosen = ", as TINKER_WIRE says" if choice != "auto" else ""
    why = (
        f", as the server answers {refusals[0].status_code} to {_NAMES[first.media]}"
        if accepted != first
        else chosen
    )
    return CheckResult("wire", "ok", f"training requests are sent as {_NAMES[accepted.media]}{why}")


async def _find_refusal(prober: Prober, form: WireFormat) -> APIStatusError | None:
    """Send a request in this format; return the refusal, None if the server accepts the format."""
    try:
        await prober.answer(_request_for_unknown_model(form))
    except APIStatusError as error:
        if _is_about_the_format(error):
            return error
    return None


def _request_for_unknown_model(form: WireFormat) -> Request[Any]:
    """Return a training request for a model that does not exist."""
    datum = Datum(
        ModelInput.from_ints([1_000_000]), {"target_tokens": [1_000_000], "weights": [1.0]}
    )
    if form.media == "proto":
        body = proto.encode_forward_backward(_UNKNOWN_MODEL, 1, [datum], "cross_entropy")
        return training_api.forward_backward(Binary(proto.MEDIA_TYPE, body))
    inputs = models.ForwardBackwardInput(data=json.wire_data([datum]), loss_fn="cross_entropy")
    return runs.forward_backward(forward_backward_input=inputs).fill(_UNKNOWN_MODEL, 1, None)


def _is_about_the_format(error: APIStatusError) -> bool:
    """Return whether a refusal may be about the format of the body. A server that names the model
    has decoded it.
    """
    return (
        retry.is_format_refused(error) or retry.is_unexplained(error)
    ) and _UNKNOWN_MODEL not in str(error.body)


# No operation has this method, so it never reaches one: a server that knows the path refuses the
# method.
_HARMLESS_METHOD = "PATCH"
_NO_OPERATION = "/api/v1/no_such_operation"
_CONCURRENT_REQUESTS = 8


async def find_operations(prober: Prober) -> dict[str, Support]:
    """Find out for each operation whether its path exists; unknown if the server answers all paths
    alike.
    """
    slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    async def probe(path: str) -> Support:
        request: Request[None] = Request(
            operation="doctor", method=_HARMLESS_METHOD, path=path, reply=None
        )
        async with slots:
            try:
                status = (await prober.answer(request)).status
            except APIStatusError as error:
                status = error.status_code
            except TinkerError:
                return "unknown"
        return (
            "yes"
            if status == retry.WRONG_METHOD_STATUS
            else "no"
            if status in ABSENT_STATUSES
            else "unknown"
        )

    # with names of objects that do not exist
    paths = {
        name: re.sub(
            r"\{[^}]*\}", "doctor", operation.path.replace("{checkpoint_id}", "weights/doctor")
        )
        for name, operation in OPERATIONS.items()
    }
    unique = sorted({*paths.values(), _NO_OPERATION})
    support = dict(zip(unique, await asyncio.gather(*map(probe, unique))))
    if support[_NO_OPERATION] != "no" or support[paths["get_server_capabilities"]] != "yes":
        return dict.fromkeys(paths, "unknown")
    return {name: support[path] for name, path in paths.items()}


def summarize_operations(operations: Mapping[str, Support]) -> CheckResult:
    """Count the operations and name the missing ones."""
    missing = sorted(name for name, support in operations.items() if support == "no")
    if "yes" not in operations.values():
        return CheckResult("operations", "note", "the server does not tell which it has")
    present = sum(support == "yes" for support in operations.values())
    rest = f"; missing: {', '.join(missing)}" if missing else ""
    return CheckResult(
        "operations", "note" if missing else "ok", f"{present} of {len(operations)}{rest}"
    )


# Beyond this, the expiry of tokens and of signed URLs is misjudged.
MAX_SKEW_SECONDS = 60.0
_LATENCY_SAMPLES = 5
_TESTED = re.compile(r"(?P<name>[\w-]+)<=(?P<version>[\w.]+) *;.*\btested\b")


def diagnose(
    config: Config, connect: Callable[[], Runtime], exchange_seconds: float
) -> DoctorReport:
    """Run every check; blocks. ``connect`` is called where a connection makes sense.

    A request that takes longer than ``exchange_seconds`` (0: no limit) counts as not answered,
    except by a ``local://`` server.
    """
    results = [_check_versions(), _check_installation(), _check_credential(config)]
    operations: dict[str, Support] = dict.fromkeys(OPERATIONS, "unknown")
    if results[-1].status == "FAIL":
        return DoctorReport(config.base_url, results, operations)
    # A local server loads its model first, and has its own limit.
    limit = None if config.is_local else exchange_seconds or None
    try:
        prober, connections = Prober(connect(), limit), list[ConnectionFacts]()
    except (ImportError, OSError, ValueError) as error:  # a local server that cannot start
        return DoctorReport(
            config.base_url, [*results, CheckResult("connection", "FAIL", str(error))], operations
        )
    operations |= run(
        prober.runtime, "doctor", lambda _: _check_server(prober, results, connections)
    ).result()
    info = prober.runtime.transport.describe_server()
    return DoctorReport(config.base_url, results, operations, info, tuple(connections))


async def _check_server(
    prober: Prober,
    results: list[CheckResult],
    connections: list[ConnectionFacts],
) -> Mapping[str, Support]:
    """Append the results of all checks of the server, and the connections to it.

    Returns which operations the server has, as far as that is known.
    """
    headers = await _check_connection(prober, results)
    if headers is None:
        return {}
    connections.extend(prober.runtime.transport.engine.describe())
    problem = await _find_foreign_server(prober)
    if problem is not None:
        results[-1] = CheckResult("connection", "FAIL", problem)
        return {}
    results.append(
        CheckResult(
            "transport",
            "ok",
            "; ".join(map(str, connections)) or "the server closes each connection",
        )
    )
    results.append(_check_clock(prober, headers))
    for name, check in _CHECKS.items():
        try:
            results.append(await check(prober))
        except AuthenticationError as error:
            results.append(CheckResult(name, "note", "not checked: needs the credential"))
            _refuse_credential(prober.runtime.config, results, error.status_code)
        except TinkerError as error:
            results.append(CheckResult(name, "FAIL", str(error)))
    operations = await find_operations(prober)
    results.append(summarize_operations(operations))
    return operations


async def _check_connection(prober: Prober, results: list[CheckResult]) -> Mapping[str, str] | None:
    """Measure the latency; return the headers of the last response, None without one."""
    clock = prober.runtime.clock
    seconds: list[float] = []
    headers: Mapping[str, str] = {}
    try:
        for _ in range(_LATENCY_SAMPLES):
            began = clock.monotonic()
            headers = await _fetch_any_headers(prober)
            seconds.append(clock.monotonic() - began)
    except TinkerError as error:
        results.append(CheckResult("connection", "FAIL", str(error)))
        return None
    first, *others = seconds
    detail = (
        f"responds in {_ms(statistics.median(others))} (first "
        f"request, with connection: {_ms(first)})"
    )
    results.append(CheckResult("connection", "ok", detail))
    return headers


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def _fetch_any_headers(prober: Prober) -> Mapping[str, str]:
    """Fetch the headers of any response, which shows that a server is there."""
    try:
        return (await prober.answer(service_api.healthz())).headers
    except APIStatusError as error:
        return error.response.headers


async def _find_foreign_server(prober: Prober) -> str | None:
    """Return why this is not a Tinker server; None if it may be one."""
    try:
        await prober.read(service_api.get_server_capabilities())
    except TinkerError as error:
        if isinstance(error, APIResponseValidationError) or (
            isinstance(error, APIStatusError) and is_absent(error)
        ):
            return str(error)
    return None


def _check_clock(prober: Prober, headers: Mapping[str, str]) -> CheckResult:
    """Compare with the header ``Date``, whose unit is a second."""
    try:
        server_time = email.utils.parsedate_to_datetime(headers.get("date", "")).timestamp()
    except ValueError:
        return CheckResult("clock", "note", "not checked: the server sends no Date header")
    skew = prober.runtime.clock.wall() - server_time
    if abs(skew) <= MAX_SKEW_SECONDS:
        return CheckResult("clock", "ok", "as the server's, within a minute")
    return CheckResult(
        "clock",
        "FAIL",
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's; set it right",
    )


async def _check_settings(prober: Prober) -> CheckResult:
    """Fetch the settings as clients do at their start. They decide the credential of later
    requests.
    """
    facts = await prober.runtime.server.config()
    if not facts.answered:
        return CheckResult(
            "settings", "note", "the server gives clients none, so they speak JSON to it first"
        )
    default = models.ClientConfigResponse()
    values = facts.config.model_dump()
    changed = [
        name
        for name, usual in default.model_dump().items()
        if usual is not None and values[name] != usual
    ]
    differing = (
        f"not at their defaults: {', '.join(changed)}" if changed else "all at their defaults"
    )
    return CheckResult("settings", "ok", f"received; {differing}")


async def _check_models(prober: Prober) -> CheckResult:
    supported = (await prober.read(service_api.get_server_capabilities())).supported_models
    names = [model.model_name for model in supported if model.model_name is not None]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return CheckResult(
        "models", "ok" if names else "note", f"{', '.join(names[:3]) or 'none'}{more}"
    )


#: In this order, after the connection.
_CHECKS: Mapping[str, Callable[[Prober], Awaitable[CheckResult]]] = {
    "settings": _check_settings,
    "models": _check_models,
    "wire": check_wire,
}


# Checks of this machine, without a request


def _check_versions() -> CheckResult:
    """List the versions of this package, the contract, Python, and the optional packages."""
    here = (
        f"tinker {DISTRIBUTION_VERSION}, contract {CONTRACT_VERSION}, Python "
        f"{platform.python_version()}"
    )
    packages = [
        f"{name} {version or f'not installed (extra {find_extra(name)})'}"
        for name, version in list_packages().items()
    ]
    untested = list_untested(_find_requirements())
    return CheckResult(
        "versions",
        "note" if untested else "ok",
        "; ".join([", ".join([here, *packages]), *untested]),
    )


def list_untested(requirements: Iterable[str]) -> list[str]:
    """Name the packages that are newer here than the extra ``tested``, one of these requirements,
    allows.
    """
    tested = (_TESTED.match(requirement) for requirement in requirements)
    bounds = {found["name"]: found["version"] for found in tested if found}
    here = {name: find_version(name) for name in bounds}
    return [
        f"{name} {here[name]} is newer than {version}, the newest release that was tested"
        for name, version in bounds.items()
        if _numbers(here[name] or "") > _numbers(version)
    ]


def _find_requirements() -> list[str]:
    try:
        return importlib.metadata.requires("tinker") or []
    except importlib.metadata.PackageNotFoundError:
        # the package runs from a folder that was never installed
        return []


def _numbers(version: str) -> list[int]:
    """Return the numbers of a release, for comparison: what follows them, such as ``+cpu``, does
    not matter here.
    """
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _check_installation() -> CheckResult:
    """Fail when files of another distribution are mixed with those of this package; note packages
    without effect on it.
    """
    installation = inspect_installation()
    if installation.problem is not None:
        return CheckResult("installation", "FAIL", installation.problem)
    patching = [
        f"{name} {here}: {advice}"
        for name, (_, advice) in PATCHING_PACKAGES.items()
        if (here := find_version(name))
    ]
    return CheckResult(
        "installation", "note" if patching else "ok", "; ".join([str(installation), *patching])
    )


def _check_credential(config: Config) -> CheckResult:
    """Find the credential without fetching it. Only the server can check it."""
    try:
        clients.check_credential(config)
        source = find_source(config)
    except CommandFailed as failure:
        return CheckResult(
            "credential", "FAIL", f"none for the hosted service. {' '.join(failure.details)}"
        )
    except TinkerError as error:
        return CheckResult("credential", "FAIL", str(error))
    if source is None:
        return CheckResult("credential", "note", "none; only the hosted service requires one")
    return CheckResult("credential", "ok", f"found in {_place_of_credential(config)}")


def _refuse_credential(config: Config, results: list[CheckResult], status: int) -> None:
    """Replace the result of :func:`_check_credential` by the refusal of the server, with advice;
    one that failed stays.
    """
    index, found = next(
        (index, result) for index, result in enumerate(results) if result.name == "credential"
    )
    detail = f"none, and the server requires one ({status}); set TINKER_API_KEY"
    if found.status == "ok":
        is_set = config.api_key is not None or config.credential_cmd is not None
        change = f"set {_place_of_credential(config)} to one that this server accepts"
        advice = change if is_set else "run `tinker auth logout` and `tinker auth login`"
        detail = f"{found.detail}, refused by the server ({status}); {advice}"
    if found.status != "FAIL":
        results[index] = CheckResult("credential", "FAIL", detail)


def _place_of_credential(config: Config) -> str:
    if config.api_key is not None:
        return "TINKER_API_KEY"
    return (
        "TINKER_CREDENTIAL_CMD"
        if config.credential_cmd is not None
        else str(config.credentials_file)
    )


@command("tinker doctor", "tinker --base-url http://localhost:8000 doctor --operations")
def doctor(
    options: GlobalOptions,
    base_url: CommandURL = None,
    operations: Annotated[
        bool, Option("List every operation, including those that the server supports.")
    ] = False,
    verbose: Annotated[
        bool,
        Option(
            "Add how clients adapt to this server, and why; for bug reports.", "-v", "--verbose"
        ),
    ] = False,
) -> None:
    """Diagnose the installation and the connection, and show what the server supports.

    Checks the versions, the installation, the connection with its latency and its certificate, the
    credential, the clock, the models, the format of training requests, and which operations of the
    contract the server has. Creates nothing on the server. Exits with 1 if something must be fixed
    before clients can work.
    """
    import msgspec

    from tinker.cli.clients import config_of, connect

    options = options._replace(base_url=base_url or options.base_url)
    report = diagnose(config_of(options), lambda: connect(options), options.short_patience)

    def table() -> None:
        rows = [(result.name, result.status, result.detail) for result in report.results]
        show_table(("Check", "", "Finding"), rows, f"{report.base_url}")
        if operations:
            click.echo("")
            show_table(("Operation", "Supported"), sorted(report.operations.items()))
        if verbose:
            click.echo("")
            found = [(fact.operation, fact.finding, fact.evidence) for fact in facts]
            show_table(
                ("Operation", "Finding", "Evidence"), found, "How clients adapt to this server"
            )

    facts = () if report.info is None else report.info.facts
    value = {
        "base_url": report.base_url,
        "ok": not report.failures,
        "checks": [result._asdict() for result in report.results],
        "operations": report.operations,
        "connections": list(map(msgspec.structs.asdict, report.connections)),
        "facts": list(map(msgspec.structs.asdict, facts)),
    }
    show(options, value, table)
    if report.failures:
        raise CommandFailed(f"Fix these first: {', '.join(report.failures)}")


ReportFile: TypeAlias = Annotated[Path, click.Path(dir_okay=False, allow_dash=True, path_type=Path)]
_CONTRADICTED, _CUT_SHORT = 1, 3


class NotRun(click.ClickException):
    """A failure before the first check."""

    exit_code = 2


class _CheckOptions(NamedTuple):
    """The options that say which checks run, and how, with the names of the kit."""

    base_model: Annotated[
        str | None,
        Option("Model to train. Default: the first that the server offers.", metavar="NAME"),
    ] = None
    label: Annotated[
        str,
        Option(
            "Name of the server in reports, such as its name and version.",
            metavar="TEXT",
            show_default=False,
        ),
    ] = ""
    skip: Annotated[
        tuple[str, ...], Option("Skip matching checks; may be repeated.", metavar="PATTERN")
    ] = ()
    slow: Annotated[bool, Option("Include checks that can take minutes.")] = False
    destructive: Annotated[
        bool, Option("Include destructive checks, such as revoking the API key.")
    ] = False
    deadline_seconds: Annotated[
        float | None,
        click.FloatRange(min=0, min_open=True),
        Option("Timeout of a check in seconds. Default: 60; 300 for slow checks.", "--deadline"),
    ] = None


@command(
    "tinker conformance --base-url http://localhost:8000",
    "tinker conformance --base-url http://localhost:8000 --json report.json",
)
def conformance(
    options: GlobalOptions,
    base_url: CommandURL = None,
    api_key: Annotated[
        str | None, Option("API key. Default: TINKER_API_KEY.", metavar="KEY")
    ] = None,
    only: Annotated[
        tuple[str, ...],
        Option(
            "Run only matching checks, such as `losses.*`; may be repeated.",
            "--only",
            "--check",
            metavar="PATTERN",
        ),
    ] = (),
    *,
    chosen: _CheckOptions,
    strict: Annotated[bool, Option("Exit with 1 for differences, too.")] = False,
    json_file: Annotated[
        ReportFile | None,
        Option("Write a JSON report; - is standard output, here and below.", "--json"),
    ] = None,
    junit_file: Annotated[
        ReportFile | None, Option("Write a JUnit XML report, for CI.", "--junit")
    ] = None,
    markdown_file: Annotated[
        ReportFile | None, Option("Write a Markdown report with recorded exchanges.", "--markdown")
    ] = None,
    badge_file: Annotated[
        ReportFile | None,
        Option("Write a badge: the JSON of an endpoint for shields.io.", "--badge"),
    ] = None,
    list_only: Annotated[bool, Option("List the checks without running them.", "--list")] = False,
) -> None:
    """Check a server against the contract.

    Trains small adapters and saves small checkpoints on the server, and deletes these checkpoints
    where the server supports that. Runs cannot be deleted: they stay in the list, in sessions
    tagged `conformance`. Checks that depend on a failed check are reported as blocked. Failures
    with the same cause form one finding. Exits with 0 if nothing contradicts the contract, 1 if
    something does, 2 if nothing could be checked, and 3 if nothing contradicts it but the limits of
    the server prevented some checks.
    """
    from tinker.testing import conformance as runner
    from tinker.testing.conformance import all_checks
    from tinker.testing.conformance import report as files
    from tinker.testing.conformance import report as table

    if list_only:
        checks = all_checks()
        rows = [(one.name, one.statement, ", ".join(one.operations)) for one in checks]
        columns = ("Check", "Requirement", "Operations")
        show(options, list(map(files.describe_check, checks)), lambda: show_table(columns, rows))
        return
    try:
        config = load_config(base_url=base_url or options.base_url, api_key=api_key)
        if config.is_local:
            raise NotRun(
                "a server in this process cannot be checked; run `tinker serve` and give its URL"
            )
        report = runner.run(
            config.base_url,
            api_key=config.api_key,
            headers=config.headers,
            only=only or ("*",),
            **chosen._asdict(),
        )
    except (ConnectionError, tinker.TinkerError, ValueError) as error:
        raise NotRun(str(error)) from error
    if not report.checks:
        raise NotRun("no check has such a name, or all are left out; --list names them all")
    files.write(report, json=json_file, junit=junit_file, markdown=markdown_file, badge=badge_file)
    if Path("-") not in (json_file, junit_file, markdown_file, badge_file):
        if options.format == "json":
            click.echo(files.as_json(report), nl=False)
        else:
            table.show(report, table.console())
    if not report.passed(strict=strict):
        raise click.exceptions.Exit(_CONTRADICTED)
    if report.was_cut_short:
        raise click.exceptions.Exit(_CUT_SHORT)
