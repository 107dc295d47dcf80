"""Randomized soak: training from threads and samplers by the hundred, while exchanges fail in every
way and the server restarts.

    python tests/stress/chaos.py --seed 7 --seconds 5 one seed; the same seed plans the same faults
    python tests/stress/chaos.py --seeds 20 --seconds 5           seeds 0 to 19
    python tests/stress/chaos.py --seeds 20 --protocol h2         the same over HTTP/2 with TLS
    python tests/stress/chaos.py --seeds 0 --killed 20 a real server that is killed and started
        again, seeds 0 to 19
    python tests/stress/chaos.py --official PYTHON the same fixed work with the official client too,
        at several rates

Afterwards it compares what the server applied with what the futures said, and looks for what was
left behind. Exits with 1 when anything is wrong. Needs the extra ``server``, and for ``--official``
the Python of an environment with that client.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kills
from black_hole import server_context

from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine
from tinker.testing import FaultyServer
from tinker.testing.faults import KINDS, FaultKind

WORKLOAD = Path(__file__).with_name("workload.py")
DOWN_SECONDS = 0.3
EXCHANGES_BEFORE_RESTARTS = 100  # until the work is under way
HANG_SECONDS = 1.0  # until something on the way breaks a connection that says nothing
GUARD_SECONDS = 600.0
# The options of a comparison with the official client, which can only report a garbled response.
CURABLE: tuple[FaultKind, ...] = ("status", "drop", "hang", "delay", "truncate", "slow")
KILLS, MOST_SERVERS = 4, 2  # at once; a server takes a second of the processor to start
RATES = (0.0, 0.1, 0.3, 0.5)


class Recorder(ToyEngine):
    """The toy engine, which lists what was applied to each model: n for the n-th loss, -n for the
    n-th optimizer step.
    """

    def __init__(self) -> None:
        super().__init__(vocabulary=32_768)
        self.applied: dict[str, list[int]] = defaultdict(list)

    def forward_backward(
        self, adapter_id: str, data: Any, loss_fn: str, config: Any, *, backward: bool
    ) -> Any:
        result = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        self.applied[adapter_id].append(int(data[0].tokens[0]))
        return result

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        result = super().optim_step(adapter_id, params)
        self.applied[adapter_id].append(-round(params.learning_rate * 1e6))
        return result


@dataclasses.dataclass
class Outcome:
    """The outcome of one run."""

    seed: int
    rate: float
    totals: Counter[str]
    result: dict[str, Any]
    applied: dict[str, list[int]]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The operations that have an outcome."""
        return [record for record in self.result["records"] if not record["interrupted"]]

    @property
    def interrupted(self) -> list[dict[str, Any]]:
        """The interrupted calls, each of which may have been made or not."""
        return [record for record in self.result["records"] if record["interrupted"]]

    def met(self, kind: FaultKind) -> int:
        """Return how many exchanges failed in this way."""
        return sum(count for name, count in self.totals.items() if name.partition(" ")[0] == kind)

    def summary(self) -> dict[str, Any]:
        """Return the totals in a readable form."""
        failed = [record for record in self.records if record["error"] is not None]
        return {
            "seed": self.seed,
            "operations": len(self.records),
            "resolved": len(self.records) - len(failed),
            "failed with a typed error": sum(record["typed"] for record in failed),
            "exchanges": self.totals["exchanges"],
            "faults": sum(self.totals.values())
            - self.totals["exchanges"]
            - self.totals["restarts"],
            "restarts": self.totals["restarts"],
            "interrupts": self.result.get("interrupts", 0),
            "calls interrupted": len(self.interrupted),
            "steps applied": sum(map(len, self.applied.values())),
            "seconds": round(self.result["seconds"], 1),
        }

    def complaints(self) -> list[str]:
        """Return every violation of the guarantees."""
        return [*self._of_futures(), *self._of_steps(), *self._of_the_rest()]

    def _of_futures(self) -> list[str]:
        untyped = [
            record for record in self.records if record["error"] is not None and not record["typed"]
        ]
        wrong = [record for record in self.records if record["wrong"] is not None]
        return [f"failed with another error: {one}" for one in untyped] + [
            f"got another's result: {one}" for one in wrong
        ]

    def _of_steps(self) -> list[str]:
        """Applied once each, in order, none left out but interrupted calls; and everything that was
        said to be done was.
        """
        found: list[str] = []
        lost = {(record["client"], signed(record)) for record in self.interrupted}
        for model, log in self.applied.items():
            order = [
                sign * number for number in range(1, len(log) + len(lost) + 2) for sign in (1, -1)
            ]
            wanted = [step for step in order if step in log or (model, step) not in lost][
                : len(log)
            ]
            if log != wanted:
                found.append(f"{model} applied {log}")
        changes = [
            record
            for record in self.records
            if record["operation"] in ("forward_backward", "optim_step")
        ]
        for record in changes:
            if record["error"] is None and signed(record) not in self.applied.get(
                record["client"], ()
            ):
                found.append(f"said to be done, but was not: {record}")
        return found

    def _of_the_rest(self) -> list[str]:
        left = [
            f"left behind: {name}: {value}" for name, value in self.result["left_behind"].items()
        ]
        return left + [f"a secret was told: {line}" for line in self.result["secrets"]]


def signed(record: dict[str, Any]) -> int:
    """Return the entry of the recorder for an operation."""
    return record["number"] if record["operation"] == "forward_backward" else -record["number"]


def run(
    seed: int,
    rate: float,
    *,
    python: str = sys.executable,
    kinds: tuple[FaultKind, ...] = KINDS,
    restarts: int = 2,
    protocol: str | None = None,
    **plan: Any,
) -> Outcome:
    """Run the workload against a separate server, which speaks ``protocol`` with TLS, or plain
    HTTP/1.1.
    """
    engine = Recorder()
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        state = State(
            lambda: engine, Settings(data_dir=Path(folder), hold_seconds=5.0, any_base_model=True)
        )
        server = FaultyServer(create_app(state), keep=False)
        ca_file = Path(folder, "ca.pem")
        context = None if protocol is None else server_context(ca_file, protocol)
        with contextlib.closing(state), server.on_port(ssl_context=context) as url:
            server.fail_randomly(rate, seed=seed, kinds=kinds, hang_seconds=HANG_SECONDS)
            restarting = _Restarts(server, restarts, plan.get("seconds") or 6.0)
            result = _worked(
                python,
                {"url": url, **plan},
                restarting,
                {"SSL_CERT_FILE": str(ca_file)} if context else {},
            )
    return Outcome(seed, rate, server.totals, result, dict(engine.applied))


class _Restarts:
    """Stops and restarts the server this often, spread over the time."""

    def __init__(self, server: FaultyServer, count: int, seconds: float) -> None:
        self._server, self._count, self._pause = server, count, seconds / (count + 1)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while self._server.totals["exchanges"] < EXCHANGES_BEFORE_RESTARTS:
            if self._over.wait(0.05):
                return
        for _ in range(self._count):
            if self._over.wait(self._pause):
                return
            self._server.go_down()
            self._over.wait(DOWN_SECONDS)
            self._server.come_up()
            self._server.totals["restarts"] += 1


def _worked(
    python: str, plan: dict[str, Any], restarts: _Restarts, variables: dict[str, str]
) -> dict[str, Any]:
    with restarts:
        done = subprocess.run(
            [python, str(WORKLOAD)],
            input=json.dumps(plan),
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
            env={
                **os.environ,
                **variables,
                **({} if python == sys.executable else {"PYTHONPATH": ""}),
            },
        )
    if done.returncode != 0:
        raise RuntimeError(f"the workload ended with {done.returncode}: {done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def soak(options: argparse.Namespace) -> bool:
    """Run every seed; return whether all succeeded."""
    totals: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    well = True
    plan = {
        "seconds": options.seconds,
        "training_clients": options.clients,
        "samplers": options.samplers,
    }

    def soaked(seed: int) -> Outcome:
        return run(seed, options.rate, protocol=options.protocol, interrupted_with=seed, **plan)

    with ThreadPoolExecutor(options.at_once) as pool:
        for outcome in pool.map(soaked, options.seed):
            summary, complaints = outcome.summary(), outcome.complaints()
            totals.update({name: value for name, value in summary.items() if name != "seed"})
            print(", ".join(f"{name} {value}" for name, value in summary.items()), flush=True)
            errors.update(
                (one["error"] or "").partition(":")[0] for one in outcome.records if one["error"]
            )
            kinds.update({kind: outcome.met(kind) for kind in KINDS})
            for complaint in complaints[:20]:
                print(f"  {complaint}")
            well = well and not complaints
    print("total:", ", ".join(f"{name} {round(value, 1)}" for name, value in totals.items()))
    print("faults:", ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    print("errors:", ", ".join(f"{name} {count}" for name, count in errors.most_common()) or "none")
    if not totals["steps applied"]:
        print("nothing was trained")
        well = False
    print(
        "no step lost or doubled, nothing left behind, no secret told"
        if well
        else "NOT as it must be"
    )
    return well


def compare(options: argparse.Namespace) -> bool:
    """Return the same work with both clients at several rates, one after the other, against a
    server of the same seed.
    """
    work = {
        "training_clients": options.clients,
        "samplers": options.samplers,
        "steps": options.steps,
        "samples": options.samples,
    }
    well = True
    print("rate  client       seconds  resolved  failed  applied twice, lost or out of order")
    for rate in RATES:
        for name, python in (("ours", sys.executable), ("official", options.official)):
            outcome = run(options.seed[0], rate, python=python, kinds=CURABLE, restarts=0, **work)
            summary, steps = outcome.summary(), outcome._of_steps()
            failed = summary["operations"] - summary["resolved"]
            line = (
                f"{rate:4.0%}  {name:11}  {summary['seconds']:7.1f}  {summary['resolved']:8}  "
                f"{failed:6}  {len(steps)}"
            )
            print(line, flush=True)
            for kind, count in Counter(
                (r["error"] or "")[:100] for r in outcome.records if r["error"]
            ).most_common(3):
                print(f"        {count} x {kind}")
            well = well and (name != "ours" or not outcome.complaints())
    return well


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, nargs="+", default=[0])
    parser.add_argument("--seeds", type=int, help="that many seeds from 0 on")
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="seeds that run beside each other, each with a server of its own",
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long work is submitted")
    parser.add_argument(
        "--killed",
        type=int,
        default=0,
        help="seeds of another scenario, in which the server process is killed",
    )
    parser.add_argument("--rate", type=float, default=0.1, help="the share of exchanges that fail")
    parser.add_argument(
        "--protocol", choices=["h2", "http/1.1"], help="with TLS; without it, HTTP/1.1 in the clear"
    )
    parser.add_argument(
        "--clients", type=int, default=12, help="training clients, each in a thread"
    )
    parser.add_argument("--samplers", type=int, default=200)
    parser.add_argument(
        "--steps", type=int, default=20, help="with --official: training steps of each client"
    )
    parser.add_argument(
        "--samples", type=int, default=3, help="with --official: samples of each sampler"
    )
    parser.add_argument(
        "--official", metavar="PYTHON", help="compare with the client of this environment"
    )
    options = parser.parse_args()
    if options.seeds is not None:
        options.seed = list(range(options.seeds))
    if options.official:
        sys.exit(0 if compare(options) else 1)
    # the workload of this process; failures are counted
    logging.getLogger("tinker").setLevel(logging.CRITICAL)
    well = [soak(options)] if options.seed else []
    if options.killed:
        at_once = min(options.at_once, MOST_SERVERS)
        well.append(kills.soak(range(options.killed), KILLS, durability="save", at_once=at_once))
    sys.exit(0 if all(well) else 1)


if __name__ == "__main__":
    main()
