"""Ctrl-C in the call that opens a service."""

from __future__ import annotations

import pytest
from support.programs import run_program

from tinker.testing import toy_server

# Interrupts the main thread where it has the lock that every import needs, and would keep it.
INTERRUPTED = """
import _imp, sys, threading
import tinker

def interrupt(frame, event, _):
    if frame.f_code.co_name == "_get_module_lock" and event == "line" and _imp.lock_held():
        raise KeyboardInterrupt
    return interrupt

def work():
    service.create_lora_training_client("tinker/toy", rank=4).result(30)
    service.create_sampling_client(base_model="tinker/toy").result(30)
    print(service.create_rest_client().get_sampler)

service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-key", {options})
sys.settrace(interrupt)
try:
    service.{call}
except KeyboardInterrupt:
    print("interrupted while it imports")
sys.settrace(None)
other = threading.Thread(target=work, daemon=True)
other.start()
other.join(60)
"""


@pytest.mark.parametrize(
    "call",
    [
        "create_lora_training_client('tinker/toy', rank=4)",
        "create_sampling_client(base_model='tinker/toy')",
        "create_rest_client()",
    ],
)
@pytest.mark.parametrize("options", ["", "observers=[id], telemetry=True"])
def test_an_interrupted_first_call_stops_no_other_thread(call: str, options: str) -> None:
    """The call that opens a service imports nothing where Ctrl-C reaches it, so that other threads
    open it after an interrupt.
    """
    program = INTERRUPTED.replace("{call}", call).replace("{options}", options)
    with toy_server() as server, server.on_port() as url:
        done = run_program(program, url)
    assert "get_sampler" in done.stdout, done.stdout + done.stderr
    assert "interrupted" not in done.stdout
