"""Certificates of an authority of their own, as files."""

from __future__ import annotations

import ssl
from pathlib import Path

import attrs
import trustme


@attrs.frozen
class Certificates:
    """A certificate for this machine and its chain, its key, and the root that a client must trust."""

    chain: Path
    key: Path
    root: Path

    def make_server_context(self) -> ssl.SSLContext:
        """Make what a server needs."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.chain, self.key)
        return context

    def make_client_context(self) -> ssl.SSLContext:
        """Make what a client needs that trusts the root, and nobody else."""
        return ssl.create_default_context(cafile=self.root)


def make_certificates(folder: Path, name: str = "server") -> Certificates:
    """Write the files of a certificate for ``localhost`` and 127.0.0.1 that an intermediate authority has issued."""
    root = trustme.CA()
    issued = root.create_child_ca().issue_cert("localhost", "127.0.0.1")
    files = Certificates(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}.root")
    files.chain.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    files.key.write_bytes(issued.private_key_pem.bytes())
    files.root.write_bytes(root.cert_pem.bytes())
    return files
