"""A platform without httpunk: httpx sends with the same settings, and the log says so once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import run_program
from support.proxies import tunnel_proxy
from support.tls import server_context

from tinker.testing import toy_server

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Refuse(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "httpunk":
            raise ModuleNotFoundError("no wheel for this platform", name=name)

sys.meta_path.insert(0, Refuse())
import tinker
url, folder, ca_file, proxy = sys.argv[1:]
config = tinker.Config.load(base_url=url, api_key="key", ca_file=ca_file or None, proxy=proxy or None)
"""

WORK = """
service = tinker.ServiceClient(config=config)
training = service.create_lora_training_client("tinker/toy", rank=4).result(60)
sampling = training.save_weights_and_get_sampling_client()
prompt, params = tinker.ModelInput.from_ints([1, 2]), tinker.SamplingParams(max_tokens=2)
samples = [sampling.sample(prompt, 1, params) for _ in range(10 if proxy else 120)]
assert all(sample.result(60).sequences for sample in samples)
assert list(sampling.sample_stream(prompt, 1, params))
path = training.save_weights_external("e").result(60).path
tinker.checkpoints.download(path, folder, service=service).result(60)
service.close().result(10)
other = tinker.ServiceClient(config=config)
assert other.get_server_capabilities().supported_models
other.close().result(10)
assert "httpunk" not in sys.modules
"""

REFUSED = """
try:
    tinker.ServiceClient(config=config, patience_seconds=0).get_server_capabilities()
except tinker.APIConnectionError as error:
    print(error.wrong_address, error.never_ran, error)
"""

DOCTOR = """
from tinker.cli import main
sys.argv[1:] = ["-f", "json", "doctor", "--base-url", url]
main()
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process without httpunk."""
    return run_program(WITHOUT + program, *arguments)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield a server with TLS."""
    with (
        toy_server(tmp_path / "server") as server,
        server.on_port(ssl_context=server_context("h2", "http/1.1")) as url,
    ):
        yield url


@pytest.mark.parametrize("through_proxy", [False, True])
def test_httpx_sends(url: str, ca_file: str, tmp_path: Path, through_proxy: bool) -> None:
    """Training, many samples, streams and files work, through a proxy too; one line says so."""
    with tunnel_proxy(url.replace("localhost", "127.0.0.1")) as proxy:
        address = f"http://127.0.0.1:{proxy.port}" if through_proxy else ""
        done = run(WORK, url, str(tmp_path / "files"), ca_file, address)
        assert bool(proxy.asked) is through_proxy
    assert (
        done.stderr.count(
            "httpunk cannot be imported here (no wheel for this platform), so "
            "httpx sends the requests"
        )
        == 1
    )
    assert any((tmp_path / "files").iterdir())


def test_errors_are_the_same_as_with_httpunk(url: str) -> None:
    """A certificate that is not trusted gives the same message as with httpunk."""
    done = run(REFUSED, url, "", "", "")
    assert done.stdout.startswith("True True Connection error: POST ")
    assert (
        "is not trusted (unable to get local issuer certificate): name its authority in ca_file"
        in done.stdout
    )


def test_the_doctor_names_it(url: str, ca_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor reports httpx, and the protocol it has negotiated with the server."""
    monkeypatch.setenv("TINKER_CA_FILE", str(ca_file))
    (connection,) = json.loads(run(DOCTOR, url, "", "", "").stdout)["connections"]
    assert connection["engine"].startswith("httpx ")
    assert (connection["http_version"], connection["tls_version"]) == ("HTTP/1.1", "TLSv1.3")
    assert connection["certificate_issuer"].startswith("trustme")
