"""Facts that a client has discovered about its server, for bug reports."""

from __future__ import annotations

import msgspec


class ServerFact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that a client discovered about a server.

    Attributes:
        operation: The operation that revealed it, by its name in the contract.
        finding: What the client does since then, or what the server lacks.
        evidence: The server's response.
    """

    operation: str
    finding: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.finding} ({self.evidence})"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that a client has discovered about its server so far. ``str()`` is safe for bug
    reports: it has no secrets.

    Attributes:
        base_url: The address of the server.
        sdk_version: The SDK version that the client sends to the server.
        facts: The facts in the order of discovery. A newer fact replaces an older one about the
            same subject.

    >>> fact = ServerFact(operation="telemetry", finding="absent", evidence="404")
    >>> print(ServerInfo(base_url="http://server", sdk_version="0.38.0", facts=(fact,)))
    http://server, client reported as SDK 0.38.0
    telemetry: absent (404)
    """

    base_url: str
    sdk_version: str
    facts: tuple[ServerFact, ...]

    def __str__(self) -> str:
        return "\n".join(
            (f"{self.base_url}, client reported as SDK {self.sdk_version}", *map(str, self.facts))
        )
