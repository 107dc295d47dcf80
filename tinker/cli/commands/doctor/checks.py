"""The checks of ``tinker doctor``. They do not retry, and they change nothing on the server."""

from __future__ import annotations

import email.utils
import importlib.metadata
import platform
import re
import statistics
from collections.abc import Awaitable, Callable, Iterable, Mapping

from tinker_wire import CONTRACT_VERSION, models
from tinker_wire.api import service as service_api
from tinker_wire.operations import OPERATIONS

from tinker._config import Config
from tinker._http import ConnectionFacts, find_source, is_absent
from tinker._installation import PATCHING_PACKAGES, inspect_installation
from tinker._runtime import Runtime, run
from tinker._version import DISTRIBUTION_VERSION
from tinker.cli import clients
from tinker.cli.commands.doctor.capabilities import (
    check_wire,
    find_operations,
    summarize_operations,
)
from tinker.cli.commands.doctor.prober import CheckResult, DoctorReport, Prober, Support
from tinker.cli.commands.installation import find_extra, find_version, list_packages
from tinker.cli.errors import CommandFailed
from tinker.errors import (
    APIResponseValidationError,
    APIStatusError,
    AuthenticationError,
    TinkerError,
)
from tinker.futures import APIFuture

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
        prober.runtime, "doctor", _check_server, prober, results, connections
    ).result()
    info = prober.runtime.transport.describe_server()
    return DoctorReport(config.base_url, results, operations, info, tuple(connections))


async def _check_server(
    _: APIFuture[Mapping[str, Support]],
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
