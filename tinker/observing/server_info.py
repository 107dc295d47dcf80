"""What a client has found out about its server, for bug reports."""

from __future__ import annotations

import msgspec


class ServerFact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a client found out about a server.

    Attributes:
        operation: The operation it was found out by, as the contract names it.
        finding: What the client does since then, or what the server lacks.
        evidence: What the server answered.
    """

    operation: str
    finding: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.finding} ({self.evidence})"


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has found out about its server so far. Its text is meant for bug reports and contains no secrets.

    Attributes:
        base_url: The address of the server.
        sdk_version: The SDK version that the client reports to the server.
        facts: What was found out, in that order; of something found out twice the later one.

    >>> fact = ServerFact(operation="telemetry", finding="absent", evidence="404")
    >>> print(ServerInfo(base_url="http://server", sdk_version="0.38.0", facts=(fact,)))
    http://server, told that this is the SDK 0.38.0
    telemetry: absent (404)
    """

    base_url: str
    sdk_version: str
    facts: tuple[ServerFact, ...]

    def __str__(self) -> str:
        return "\n".join((f"{self.base_url}, told that this is the SDK {self.sdk_version}", *map(str, self.facts)))
