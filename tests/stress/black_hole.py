"""Packets that are lost between client and server: all of them for a while, or a share of them all
the time.

    python tests/stress/black_hole.py --seconds 30 --times 3 Linux, as root: it needs two network
        namespaces
    python tests/stress/black_hole.py --lost 0.3 --reordered 0.3 --doubled 0.1

Client and server are processes in namespaces of their own; between them is a relay of packets. In
the first form it stops for a while. Prints how long after the end of the hole each kind of work of
``workload.py`` went on, over HTTP/1.1 and HTTP/2 with TLS; exits with 1 if that takes longer than
``--limit``, or if anything failed. In the second form ``--limit`` is for all of the work.
``--ipv6`` gives both ends addresses of that kind.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import heapq
import itertools
import json
import os
import random
import selectors
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

HERE = Path(__file__)
IPV4, IPV6 = ("10.99.0.1/24", "10.99.0.2/24"), ("fd99::1/64", "fd99::2/64")
PORT = 8443
WORK = {"training_clients": 3, "samplers": 40, "steps": 20, "samples": 3}
LONGEST_DELAY_SECONDS = 0.05  # of a packet that others overtake
SAMPLERS, KINDS = 20, ("sample", "optim_step")
START_SECONDS, BEFORE_SECONDS, AFTER_SECONDS, GUARD_SECONDS = 5.0, 3.0, 30.0, 300.0
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


# ------------------------------------------------------------------------------------------ the way


def ip(*words: str) -> None:
    """Run the command ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespace(name: str, address: str) -> Iterator[int]:
    """Yield a namespace with one network device; the file from which its packets are read, and to
    which packets are written.
    """
    device = os.open("/dev/net/tun", os.O_RDWR)
    ip("netns", "add", name)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", name, "netns", name)
        added = ["addr", "add", address, "dev", name, *(["nodad"] if ":" in address else [])]
        for words in (added, ["link", "set", name, "up"], ["link", "set", "lo", "up"]):
            ip("-n", name, *words)
        yield device
    finally:
        ip("netns", "del", name)
        os.close(device)


class Relay(threading.Thread):
    """Carries packets between two devices, unless ``is_hole``; a share of them is lost, doubled, or
    overtaken by others.
    """

    def __init__(self, one: int, other: int, shares: dict[str, float]) -> None:
        super().__init__(daemon=True)
        self.is_hole = self.is_over = False
        self._ways = {one: other, other: one}
        self._lost, self._doubled, self._reordered = (
            shares["lost"],
            shares["doubled"],
            shares["reordered"],
        )
        self._random, self._order = random.Random(0), itertools.count()
        self._due: list[tuple[float, int, int, bytes]] = []

    def run(self) -> None:
        """Carry until it is over."""
        with selectors.DefaultSelector() as selector:
            for device in self._ways:
                selector.register(device, selectors.EVENT_READ)
            while not self.is_over:
                for key, _ in selector.select(0.001 if self._due else 0.1):
                    self._take(self._ways[key.fd], os.read(key.fd, 1 << 16))
                while self._due and self._due[0][0] <= time.monotonic():
                    os.write(*heapq.heappop(self._due)[2:])

    def _take(self, to: int, packet: bytes) -> None:
        for _ in range(1 + (self._random.random() < self._doubled)):
            if not self.is_hole and self._random.random() >= self._lost:
                late = (
                    self._random.random() * LONGEST_DELAY_SECONDS
                    if self._random.random() < self._reordered
                    else 0.0
                )
                heapq.heappush(self._due, (time.monotonic() + late, next(self._order), to, packet))


# ----------------------------------------------------------------------------------------- the ends


def server_context(ca_file: Path, protocol: str) -> ssl.SSLContext:
    """Make a context for a server here that speaks this protocol; the file gets the certificate
    that clients have to trust.
    """
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(
        *(address.partition("/")[0] for _, address in (IPV4, IPV6)), "localhost"
    ).configure_cert(context)
    context.set_alpn_protocols([protocol])
    return context


def serve(folder: Path, protocol: str, address: str) -> None:
    """Be the server, until killed."""
    from tinker.local import Settings, State, create_app
    from tinker.local.engines.toy import ToyEngine
    from tinker.testing import FaultyServer

    context = server_context(folder / "ca.pem", protocol)
    app = create_app(State(ToyEngine, Settings(data_dir=folder / "data")))
    with FaultyServer(app).on_port(ssl_context=context) as url:
        asyncio.run(_forward(int(url.rpartition(":")[2]), address))


async def _forward(port: int, address: str) -> None:
    """Offer a port of this machine to the other one."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    listener = await asyncio.start_server(forward, address, PORT)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await listener.serve_forever()


# ---------------------------------------------------------------------------------- the measurement


@contextlib.contextmanager
def process(name: str, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script in a namespace, as one of the ends."""
    command = ["ip", "netns", "exec", name, sys.executable, *words]
    env = {**os.environ, **environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as running:
        try:
            yield running
        finally:
            running.kill()


@contextlib.contextmanager
def ends(asked: argparse.Namespace, protocol: str) -> Iterator[tuple[Relay, str, str]]:
    """Yield the relay between both ends, the URL of the server, and the file with
    its certificate.
    """
    client, server = IPV6 if asked.ipv6 else IPV4
    address = server.partition("/")[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        namespace("tinker-client", client) as one,
        namespace("tinker-server", server) as other,
        process(
            "tinker-server",
            str(HERE),
            "--serve",
            folder,
            "--protocol",
            protocol,
            "--address",
            address,
        ) as serving,
    ):
        relay = Relay(one, other, vars(asked))
        relay.start()
        assert serving.stdout is not None
        assert serving.stdout.readline() == "up\n"
        yield (
            relay,
            f"https://{f'[{address}]' if asked.ipv6 else address}:{PORT}",
            str(Path(folder, "ca.pem")),
        )
        relay.is_over = True
        relay.join()


@contextlib.contextmanager
def workload(url: str, ca_file: str, **plan: object) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the workload in the client's namespace; yield a function that waits for its result."""
    script = str(HERE.with_name("workload.py"))
    with process("tinker-client", script, SSL_CERT_FILE=ca_file) as client:
        assert client.stdin is not None
        client.stdin.write(json.dumps({"url": url, **plan}))
        client.stdin.close()
        client.stdin = None
        yield lambda: json.loads(client.communicate(timeout=GUARD_SECONDS)[0])


def find_failed(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one for one in result["records"] if one["error"] is not None or one["wrong"] is not None
    ]


def measure_hole(asked: argparse.Namespace, protocol: str) -> bool:
    """Print the seconds from the end of a hole until the first work of each kind was done; return
    whether all is well.
    """
    seconds = BEFORE_SECONDS + asked.seconds + AFTER_SECONDS
    with (
        ends(asked, protocol) as (relay, url, ca_file),
        workload(url, ca_file, training_clients=1, samplers=SAMPLERS, seconds=seconds) as finish,
    ):
        time.sleep(START_SECONDS + BEFORE_SECONDS)
        relay.is_hole = True
        begin = time.monotonic()
        time.sleep(asked.seconds)
        relay.is_hole = False
        end = time.monotonic()
        result = finish()
    done = {
        kind: [one["at"] for one in result["records"] if one["operation"] == kind] for kind in KINDS
    }
    firsts = {kind: min(at for at in [*done[kind], inf] if at > end) - end for kind in KINDS}
    before = {kind: sum(at < begin for at in done[kind]) for kind in KINDS}
    after = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in firsts.items())
    print(f"{protocol}, {asked.seconds:g} s: {after} after its end; before: {before}", flush=True)
    failed = find_failed(result)
    print(*(f"  failed: {one}" for one in failed), sep="\n", flush=True)
    return not failed and max(firsts.values()) <= asked.limit


def measure_loss(asked: argparse.Namespace, protocol: str) -> bool:
    """Print the seconds that the work took while packets were lost; return whether all is well."""
    with (
        ends(asked, protocol) as (_, url, ca_file),
        workload(url, ca_file, **WORK) as finish,
    ):
        result = finish()
    failed = find_failed(result)
    shares = ", ".join(
        f"{getattr(asked, name):.0%} {name}" for name in ("lost", "reordered", "doubled")
    )
    done = f"{len(result['records'])} operations in {result['seconds']:.1f} s, {len(failed)} failed"
    print(
        f"{protocol}, {shares}: {done}, left behind: {result['left_behind'] or 'nothing'}",
        flush=True,
    )
    return not failed and result["seconds"] <= asked.limit


def main() -> int:
    """Measure both protocols."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the hole")
    parser.add_argument(
        "--lost",
        type=float,
        default=0.0,
        help="the share of packets that are lost, in the second form",
    )
    parser.add_argument(
        "--reordered", type=float, default=0.0, help="the share of packets that others overtake"
    )
    parser.add_argument(
        "--doubled", type=float, default=0.0, help="the share of packets that arrive twice"
    )
    parser.add_argument("--ipv6", action="store_true")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument(
        "--limit",
        type=float,
        default=5.0,
        help="seconds after the end of the hole, or of all the work",
    )
    parser.add_argument("--protocol", choices=["h2", "http/1.1"])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.protocol, asked.address)
    measure = measure_loss if asked.lost or asked.reordered or asked.doubled else measure_hole
    protocols = [asked.protocol] if asked.protocol else ["h2", "http/1.1"]
    outcomes = [measure(asked, protocol) for protocol in protocols for _ in range(asked.times)]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
