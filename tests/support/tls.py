"""Certificates of authorities that exist only while the tests run, as TLS contexts and as files."""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

import attrs
import trustme

NAMES = ("localhost", "127.0.0.1", "::1")


@functools.cache
def authority() -> trustme.CA:
    """Return the authority that clients have to trust."""
    return trustme.CA()


def write_authority(folder: Path) -> Path:
    """Write the certificate of the authority into a folder, and return its path."""
    path = folder / "ca.pem"
    authority().cert_pem.write_to_path(str(path))
    return path


def server_context(*protocols: str, names: tuple[str, ...] = NAMES) -> ssl.SSLContext:
    """Return a context for a server on this machine, which offers these protocols by ALPN."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority().issue_cert(*names).configure_cert(context)
    context.set_alpn_protocols(list(protocols))
    return context


def client_context(*protocols: str) -> ssl.SSLContext:
    """Return a context that trusts only the authority, and offers these protocols, if any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority().configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


@attrs.frozen
class Certificates:
    """A certificate for this machine with its chain, its key, and the root to trust."""

    chain: Path
    key: Path
    root: Path

    def make_server_context(self) -> ssl.SSLContext:
        """Return the context of a server with this certificate."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.chain, self.key)
        return context

    def make_client_context(self) -> ssl.SSLContext:
        """Return the context of a client that trusts only the root."""
        return ssl.create_default_context(cafile=self.root)


def make_certificates(folder: Path, name: str = "server") -> Certificates:
    """Write a certificate for this machine that an intermediate authority has issued."""
    root = trustme.CA()
    issued = root.create_child_ca().issue_cert("localhost", "127.0.0.1")
    files = Certificates(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.root")
    files.chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    files.key.write_bytes(issued.private_key_pem.bytes())
    files.root.write_bytes(root.cert_pem.bytes())
    return files
