"""Where a host is, by its name or address."""

from __future__ import annotations

import ipaddress


def is_this_machine(name: str) -> bool:
    """Return whether a name or an address reaches nothing but this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_address(name: str) -> bool:
    """Return whether it is an address: no page can come from one and have its name led elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
