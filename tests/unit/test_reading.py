"""Reading records on several threads."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import sys, threading
from tinker._wire.json import decode
from tinker_records import Record

sys.setswitchinterval(1e-6)


def nested():
    kind = int
    for depth in range(8):
        annotations = {f"field_{i}": kind | None for i in range(10)}
        kind = type(Record)(f"Record{depth}", (Record,), {"__annotations__": annotations, **dict.fromkeys(annotations)})
    return kind


for _ in range(100):
    kind, barrier = nested(), threading.Barrier(4)

    def read():
        barrier.wait()
        decode(b'{"field_1": {"field_2": null}}', kind)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_records_are_first_read_on_several_threads() -> None:
    """Threads that read records of a kind for the first time at once do not crash."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
