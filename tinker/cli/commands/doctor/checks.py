"""The checks of ``tinker doctor``. They do not retry, and they change nothing on the server."""

from __future__ import annotations

import email.utils
import statistics
from collections.abc import Awaitable, Callable, Mapping

from tinker_wire import models
from tinker_wire.api import service as service_api
from tinker_wire.operations import OPERATIONS

from tinker._config import Config
from tinker._http import ConnectionFacts, is_absent
from tinker._runtime import Runtime, run
from tinker.cli.commands.doctor.capabilities import check_wire, find_operations, summarize_operations
from tinker.cli.commands.doctor.environment import check_credential, check_installation, check_versions, refuse_credential
from tinker.cli.commands.doctor.prober import CheckResult, DoctorReport, Prober, Support
from tinker.errors import APIResponseValidationError, APIStatusError, AuthenticationError, TinkerError
from tinker.futures import APIFuture

# Beyond this, the expiry of tokens and of signed URLs is misjudged.
MAX_SKEW_SECONDS = 60.0
_LATENCY_SAMPLES = 5


def diagnose(config: Config, connect: Callable[[], Runtime], exchange_seconds: float) -> DoctorReport:
    """Run every check; blocks. ``connect`` is called where a connection makes sense.

    A request that takes longer than ``exchange_seconds`` (0: no limit) counts as not answered.
    """
    results = [check_versions(), check_installation(), check_credential(config)]
    operations: dict[str, Support] = dict.fromkeys(OPERATIONS, "unknown")
    if results[-1].status == "FAIL":
        return DoctorReport(config.base_url, results, operations)
    prober, connections = Prober(connect(), exchange_seconds or None), list[ConnectionFacts]()
    operations |= run(prober.runtime, "doctor", _check_server, prober, results, connections).result()
    info = prober.runtime.transport.describe_server()
    return DoctorReport(config.base_url, results, operations, info, tuple(connections))


async def _check_server(
    _: APIFuture[Mapping[str, Support]], prober: Prober, results: list[CheckResult], connections: list[ConnectionFacts]
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
    results.append(CheckResult("transport", "ok", "; ".join(map(str, connections)) or "the server closes each connection"))
    results.append(_check_clock(prober, headers))
    for name, check in _CHECKS.items():
        try:
            results.append(await check(prober))
        except AuthenticationError as error:
            results.append(CheckResult(name, "note", "not checked: needs the credential"))
            _note_refusal(prober.runtime.config, results, error.status_code)
        except TinkerError as error:
            results.append(CheckResult(name, "FAIL", str(error)))
    operations = await find_operations(prober)
    results.append(summarize_operations(operations))
    return operations


def _note_refusal(config: Config, results: list[CheckResult], status: int) -> None:
    """Replace the result of the credential check by the refusal of the server."""
    index = next(index for index, result in enumerate(results) if result.name == "credential")
    if results[index].status != "FAIL":
        results[index] = refuse_credential(config, results[index], status)


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
    detail = f"responds in {_ms(statistics.median(others))} (first request, with connection: {_ms(first)})"
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
    except APIResponseValidationError as error:
        return str(error)
    except APIStatusError as error:
        return str(error) if is_absent(error) else None
    except TinkerError:
        return None
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
    return CheckResult("clock", "FAIL", f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's; set it right")


async def _check_settings(prober: Prober) -> CheckResult:
    """Fetch the settings as clients do at their start. They decide the credential of later requests."""
    facts = await prober.runtime.server.config()
    if not facts.answered:
        return CheckResult("settings", "note", "the server gives clients none, so they speak JSON to it first")
    default = models.ClientConfigResponse()
    values = facts.config.model_dump()
    changed = [name for name, usual in default.model_dump().items() if usual is not None and values[name] != usual]
    differing = f"not at their defaults: {', '.join(changed)}" if changed else "all at their defaults"
    return CheckResult("settings", "ok", f"received; {differing}")


async def _check_models(prober: Prober) -> CheckResult:
    supported = (await prober.read(service_api.get_server_capabilities())).supported_models
    names = [model.model_name for model in supported if model.model_name is not None]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return CheckResult("models", "ok" if names else "note", f"{', '.join(names[:3]) or 'none'}{more}")


#: In this order, after the connection.
_CHECKS: Mapping[str, Callable[[Prober], Awaitable[CheckResult]]] = {
    "settings": _check_settings,
    "models": _check_models,
    "wire": check_wire,
}
