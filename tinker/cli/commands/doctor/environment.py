"""Checks of this machine, without a request: versions, installation, credential."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterable

from tinker_wire import CONTRACT_VERSION

from tinker._config import Config
from tinker._http import find_source
from tinker._installation import inspect_installation
from tinker._version import DISTRIBUTION_VERSION
from tinker.cli import clients
from tinker.cli.commands.doctor.prober import CheckResult
from tinker.cli.commands.installation import find_version, list_packages
from tinker.cli.errors import CommandFailed
from tinker.errors import TinkerError

_TESTED = re.compile(r"(?P<name>[\w-]+)<=(?P<version>[\w.]+) *;.*\btested\b")


def check_versions() -> CheckResult:
    """List the versions of this package, the contract, Python, and the optional packages."""
    here = f"tinker {DISTRIBUTION_VERSION}, contract {CONTRACT_VERSION}, Python {platform.python_version()}"
    packages = [f"{name} {version}" for name, version in list_packages().items()]
    untested = list_untested(_find_requirements())
    return CheckResult("versions", "note" if untested else "ok", "; ".join([", ".join([here, *packages]), *untested]))


def list_untested(requirements: Iterable[str]) -> list[str]:
    """Name the packages that are newer here than the extra ``tested``, one of these requirements, allows."""
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
    except importlib.metadata.PackageNotFoundError:  # the package runs from a folder that was never installed
        return []


def _numbers(version: str) -> list[int]:
    """Return the numbers of a release, for comparison: what follows them, such as ``+cpu``, does not matter here."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def check_installation() -> CheckResult:
    """Fail when files of another distribution are mixed with those of this package."""
    installation = inspect_installation()
    if installation.problem is not None:
        return CheckResult("installation", "FAIL", installation.problem)
    return CheckResult("installation", "ok", str(installation))


def check_credential(config: Config) -> CheckResult:
    """Find the credential without fetching it. Only the server can check it."""
    try:
        clients.check_credential(config)
        source = find_source(config)
    except CommandFailed as failure:
        return CheckResult("credential", "FAIL", f"none for the hosted service. {' '.join(failure.details)}")
    except TinkerError as error:
        return CheckResult("credential", "FAIL", str(error))
    if source is None:
        return CheckResult("credential", "note", "none; only the hosted service requires one")
    return CheckResult("credential", "ok", f"found in {_place_of_credential(config)}")


def refuse_credential(config: Config, found: CheckResult, status: int) -> CheckResult:
    """Turn the result of :func:`check_credential` into a refusal by the server, with advice."""
    if found.status == "note":
        return CheckResult("credential", "FAIL", f"none, and the server requires one ({status}); set TINKER_API_KEY")
    advice = "run `tinker auth logout` and `tinker auth login`"
    if config.api_key is not None or config.credential_cmd is not None:
        advice = f"set {_place_of_credential(config)} to one that this server accepts"
    return CheckResult("credential", "FAIL", f"{found.detail}, refused by the server ({status}); {advice}")


def _place_of_credential(config: Config) -> str:
    if config.api_key is not None:
        return "TINKER_API_KEY"
    return "TINKER_CREDENTIAL_CMD" if config.credential_cmd is not None else str(config.credentials_file)
