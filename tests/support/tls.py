"""TLS contexts with certificates of an authority that exists only while the tests run."""

from __future__ import annotations

import functools
import ssl

import trustme

NAMES = ("localhost", "127.0.0.1", "::1")


@functools.cache
def authority() -> trustme.CA:
    """The authority that clients have to trust; ``authority().cert_pem.write_to_path(path)`` writes its certificate."""
    return trustme.CA()


def server_context(*protocols: str, names: tuple[str, ...] = NAMES) -> ssl.SSLContext:
    """A context for a server on this machine, which offers these protocols by ALPN (``h2``, ``http/1.1``)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(list(protocols))
    return context


def client_context(*protocols: str) -> ssl.SSLContext:
    """A context for a client that trusts only the authority, and offers these protocols by ALPN, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context
