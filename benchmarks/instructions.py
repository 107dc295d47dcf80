"""Count the instructions that one operation costs, under callgrind: unlike a time, the count is the
same on a busy machine.

    python benchmarks/instructions.py                              print the counts
    python benchmarks/instructions.py --official B/bin/python beside those of the official client
    python benchmarks/instructions.py --check fail when one is further off the record than is
        allowed
    python benchmarks/instructions.py --record write the middle of six runs to instructions.json

Each row runs in a process that first does some operations, so that imports, connections and first
times are over. Then the counter is set to zero, and the figure is what it shows after more
operations, divided by their number. Everything in the process is counted: the interpreter, the
client, its HTTP engine and asyncio. Needs valgrind. Counts belong to one version of CPython, which
is recorded too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from wires import stub_server

HERE = Path(__file__).parent
RECORD = HERE / "instructions.json"
#: How far a count may be off the record. The body of a step is large: what the system does not take
#: at once is copied, which is up to 7 % of the instructions, and depends on how fast the server
#: reads.
ALLOWED = {"samples": 0.05, "steps": 0.1}
RECORDED_RUNS = 6
COUNTS = {"samples": 300, "steps": 6}
DATUMS, TOKENS, PROMPT_TOKENS, SAMPLED_TOKENS = 128, 4096, 512, 128


# ---------------------------------------------------------------------------------- what is counted


def prepare_samples(base_url: str) -> Callable[[int], None]:
    """Make a function that asks for samples, a hundred at once, and reads each."""
    import tinker

    params = tinker.SamplingParams(max_tokens=SAMPLED_TOKENS, temperature=1.0)
    sampler = (
        tinker.ServiceClient(base_url=base_url)
        .create_sampling_client(base_model="stub/model")
        .result()
    )
    prompts = [tinker.ModelInput.from_ints(list(range(i, i + PROMPT_TOKENS))) for i in range(100)]

    def take(count: int) -> None:
        for _ in range(count // 100):
            for future in [sampler.sample(prompt, 1, params) for prompt in prompts]:
                assert len(future.result().sequences[0].tokens) == SAMPLED_TOKENS

    take(100)
    return take


def prepare_steps(base_url: str) -> Callable[[int], None]:
    """Make a function that takes steps one after the other, of datums that are made of arrays."""
    import numpy as np

    import tinker

    training = (
        tinker.ServiceClient(base_url=base_url)
        .create_lora_training_client(base_model="stub/model")
        .result()
    )
    tokens = np.arange(TOKENS + 1)
    floats = np.linspace(-1, 1, TOKENS, dtype=np.float32)
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(tokens[:-1].tolist()),
            loss_fn_inputs={
                "target_tokens": tinker.TensorData.from_numpy(tokens[1:].astype(np.int64)),
                "logprobs": tinker.TensorData.from_numpy(floats.copy()),
                "advantages": tinker.TensorData.from_numpy(floats.copy()),
            },
        )
        for _ in range(DATUMS)
    ]

    def take(count: int) -> None:
        for _ in range(count):
            loss = training.forward_backward(data, "importance_sampling")
            training.optim_step(tinker.AdamParams()).result()
            assert (
                len([output["logprobs"].to_numpy() for output in loss.result().loss_fn_outputs])
                == DATUMS
            )

    take(2)
    return take


def work(row: str, base_url: str) -> None:
    """Do the operations of a row; the counter starts at the first line of input, and is read before
    the second.
    """
    take = WORK[row](base_url)
    for turn in (lambda: take(COUNTS[row]), lambda: None):
        print("ready", flush=True)
        sys.stdin.readline()
        turn()


WORK: dict[str, Callable[[str], Callable[[int], None]]] = {
    "samples": prepare_samples,
    "steps": prepare_steps,
}


# ----------------------------------------------------------------------------------------- counting


def count_row(python: str, row: str, base_url: str) -> int:
    """Return the instructions of one operation."""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "TINKER_API_KEY": "tml-bench",
        "TINKER_TELEMETRY": "0",
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "counts")
        command = [
            "valgrind",
            "-q",
            "--tool=callgrind",
            f"--callgrind-out-file={output}",
            python,
            __file__,
        ]
        command += ["--work", row, "--base-url", base_url]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for order in ("--zero", "--dump"):
                if process.stdout.readline() != "ready\n":
                    raise SystemExit(f"{row}: the process ended early")
                subprocess.run(
                    ["callgrind_control", order, str(process.pid)], check=True, capture_output=True
                )
                process.stdin.write("\n")
                process.stdin.flush()
        counted = re.search(
            r"^(?:summary|totals): (\d+)", Path(f"{output}.1").read_text(), re.MULTILINE
        )
        assert counted is not None
        return int(counted[1]) // COUNTS[row]


def count_all(python: str) -> dict[str, int]:
    """Return the instructions of one operation of each row."""
    with stub_server() as base_url:
        return {row: count_row(python, row, base_url) for row in COUNTS}


# ---------------------------------------------------------------------------------------- reporting


def check(counts: dict[str, int]) -> int:
    """Compare with the record; the exit status."""
    record = json.loads(RECORD.read_text())
    version = ".".join(platform.python_version_tuple()[:2])
    if record["python"] != version:
        print(
            f"the recorded counts are those of CPython {record['python']}, this "
            f"is {version}: use --record"
        )
        return 1
    status = 0
    for row, count in counts.items():
        change = count / record["instructions"][row] - 1
        within = abs(change) <= ALLOWED[row]
        print(
            f"{row}: {change:+.1%} of the "
            f"record{'' if within else f', which is more than {ALLOWED[row]:.0%}'}"
        )
        status |= not within
    return status


def write_record(runs: list[dict[str, int]]) -> None:
    """Replace the record with the middle between the least and the most of several runs."""
    counts = {
        row: (min(run[row] for run in runs) + max(run[row] for run in runs)) // 2 for row in COUNTS
    }
    version = ".".join(platform.python_version_tuple()[:2])
    RECORD.write_text(json.dumps({"python": version, "instructions": counts}, indent=2) + "\n")


def main() -> int:
    """Count, and print, check or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--official", help="the interpreter of an environment with the official client"
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--work", choices=WORK, help=argparse.SUPPRESS)
    parser.add_argument("--base-url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.base_url)
        return 0
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed")
    counts = count_all(sys.executable)
    official = count_all(options.official) if options.official else {}
    for row, count in counts.items():
        beside = (
            f"   official {official[row] / 1e6:.2f} million: {count / official[row]:.3f} of it"
            if official
            else ""
        )
        print(f"{row}: {count / 1e6:.2f} million instructions each{beside}", flush=True)
    if options.record:
        write_record([counts, *(count_all(sys.executable) for _ in range(RECORDED_RUNS - 1))])
    return check(counts) if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
