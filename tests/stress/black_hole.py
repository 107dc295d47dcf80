"""A black hole between client and server: for a while every packet is lost, without a word to either side.

    python tests/stress/black_hole.py --seconds 30 --times 3       Linux, as root: it needs two network namespaces

Client and server are processes in namespaces of their own; between them is a relay of packets, which stops for a while. Prints
how long after the end of the hole each kind of work went on, over HTTP/1.1 and HTTP/2 with TLS; exits with 1 if that takes
longer than ``--limit``, or if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import selectors
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__)
CLIENT, SERVER = "10.99.0.1", "10.99.0.2"
PORT = 8443
SAMPLES = 20
BEFORE_SECONDS, AFTER_SECONDS, GUARD_SECONDS = 3.0, 30.0, 300.0
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000


# -------------------------------------------------------------------------------------------------------------------- the way


def ip(*words: str) -> None:
    """Run the command ``ip``."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def namespace(name: str, address: str) -> Iterator[int]:
    """Yield a namespace with one network device; the file from which its packets are read, and to which packets are written."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    ip("netns", "add", name)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
        ip("link", "set", name, "netns", name)
        for words in (["addr", "add", f"{address}/24", "dev", name], ["link", "set", name, "up"], ["link", "set", "lo", "up"]):
            ip("-n", name, *words)
        yield device
    finally:
        ip("netns", "del", name)
        os.close(device)


class Relay(threading.Thread):
    """Carries packets between two devices, unless ``is_hole``."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(daemon=True)
        self.is_hole = self.is_over = False
        self._ways = {one: other, other: one}

    def run(self) -> None:
        """Carry until it is over."""
        with selectors.DefaultSelector() as selector:
            for device in self._ways:
                selector.register(device, selectors.EVENT_READ)
            while not self.is_over:
                for key, _ in selector.select(0.1):
                    packet = os.read(key.fd, 1 << 16)
                    if not self.is_hole:
                        os.write(self._ways[key.fd], packet)


# ------------------------------------------------------------------------------------------------------------------- the ends


def server_context(ca_file: Path, protocol: str) -> ssl.SSLContext:
    """Make a context for a server here that speaks this protocol; the file gets the certificate that clients have to trust."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(SERVER, "localhost").configure_cert(context)
    context.set_alpn_protocols([protocol])
    return context


def serve(folder: Path, protocol: str) -> None:
    """Be the server, until killed."""
    from tinker.local import Settings, State, create_app
    from tinker.local.engines.toy import ToyEngine
    from tinker.testing import FaultyServer

    context = server_context(folder / "ca.pem", protocol)
    app = create_app(State(ToyEngine, Settings(data_dir=folder / "data")))
    with FaultyServer(app).on_port(ssl_context=context) as url:
        asyncio.run(_forward(int(url.rpartition(":")[2])))


async def _forward(port: int) -> None:
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

    listener = await asyncio.start_server(forward, SERVER, PORT)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    await listener.serve_forever()


def work() -> None:
    """Be the client: sample and train until the standard input ends; then print when each piece of work was done."""
    import tinker

    done: dict[str, list[float]] = {"samples": [], "steps": []}
    failures: list[str] = []
    over = threading.Event()
    service = tinker.ServiceClient(base_url=f"https://{SERVER}:{PORT}", api_key="tml-hole")
    training = service.create_lora_training_client("tinker/toy", rank=4)
    sampler = service.create_sampling_client(base_model="tinker/toy").result(60)
    ids = [1, 2, 3]
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(ids), loss_fn_inputs={"target_tokens": ids, "weights": [1.0] * 3}
    )

    def repeat(kind: str) -> None:
        while not over.is_set():
            try:
                if kind == "samples":
                    sampler.sample(tinker.ModelInput.from_ints(ids), 1, tinker.SamplingParams(max_tokens=4)).result()
                else:
                    training.forward_backward([datum], "cross_entropy").result()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
                failures.append(repr(error))
            done[kind].append(time.monotonic())
            time.sleep(0.01)

    threads = [threading.Thread(target=repeat, args=(kind,)) for kind in ["samples"] * SAMPLES + ["steps"]]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({"done": done, "failures": failures}))


# -------------------------------------------------------------------------------------------------------------- the measurement


@contextlib.contextmanager
def process(name: str, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """This script in a namespace, as one of the ends."""
    command = ["ip", "netns", "exec", name, sys.executable, str(HERE), *words]
    env = {**os.environ, **environment}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as running:
        try:
            yield running
        finally:
            running.kill()


def measure(seconds: float, protocol: str) -> dict[str, Any]:
    """Return the seconds from the end of a hole until the first work of each kind was done, and what failed."""
    with (
        tempfile.TemporaryDirectory() as folder,
        namespace("tinker-client", CLIENT) as one,
        namespace("tinker-server", SERVER) as other,
        process("tinker-server", "--serve", folder, "--protocol", protocol) as server,
    ):
        relay = Relay(one, other)
        relay.start()
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        with process("tinker-client", "--work", SSL_CERT_FILE=str(Path(folder, "ca.pem"))) as client:
            time.sleep(BEFORE_SECONDS + 5)
            relay.is_hole = True
            begin = time.monotonic()
            time.sleep(seconds)
            relay.is_hole = False
            end = time.monotonic()
            time.sleep(AFTER_SECONDS)
            printed, _ = client.communicate("", GUARD_SECONDS)
        relay.is_over = True
        relay.join()
    result = json.loads(printed)
    firsts = {kind: min((at for at in times if at > end), default=float("inf")) - end for kind, times in result["done"].items()}
    before = {kind: sum(at < begin for at in times) for kind, times in result["done"].items()}
    return {"after": firsts, "before": before, "failures": result["failures"]}


def main() -> int:
    """Measure both protocols."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="length of the hole")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds after its end")
    parser.add_argument("--protocol", choices=["h2", "http/1.1"])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve, asked.protocol)
    if asked.work:
        work()
        return 0
    is_good = True
    for protocol in [asked.protocol] if asked.protocol else ["h2", "http/1.1"]:
        for _ in range(asked.times):
            found = measure(asked.seconds, protocol)
            after = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in found["after"].items())
            sys.stdout.write(f"{protocol}, {asked.seconds:g} s: {after} after its end; before: {found['before']}\n")
            sys.stdout.writelines(f"  failed: {failure}\n" for failure in found["failures"])
            sys.stdout.flush()
            is_good = is_good and not found["failures"] and max(found["after"].values()) <= asked.limit
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
