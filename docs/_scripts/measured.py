"""What the local server does in a second, measured on this machine and drawn:
`nox -s pictures`.

Seconds are those of processor time on one core, client included, which other work on the machine
changes little.
"""

from __future__ import annotations

import datetime
import html
import platform
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

import tinker
from tinker.local import Settings, running_server

PICTURES = Path(__file__).resolve().parents[1] / "pictures"
COUNTS = (1, 2, 4, 8, 16, 32)
LENGTHS = (16, 32, 64, 128, 256, 512)  # as many as the packaged model takes
SECONDS = 2.0  # of each point, at least
TOKENS = 32  # of a sample, and of a prompt
EXAMPLE_TOKENS = 128
ADAM = tinker.AdamParams(learning_rate=1e-6)
LEFT, TOP, WIDTH, HEIGHT = 60, 44, 540, 180  # of a panel
COLOR = "#0e8a9a"
STYLE = "svg:root{color:#24292f}@media(prefers-color-scheme:dark){svg:root{color:#d0d7de}}"


class Panel(NamedTuple):
    """A curve over a logarithmic axis, and what is on the axes."""

    title: str
    x_label: str
    points: Sequence[tuple[int, float]]


# ---------------------------------------------------------------------------------------- measuring


def count_rate(work: Callable[[], int]) -> float:
    """Return how much of it is done in a second, in the best of three rounds; the first call of all
    is not counted.
    """
    work()
    rates: list[float] = []
    for _ in range(3):
        began, done = time.process_time(), 0
        while (passed := time.process_time() - began) < SECONDS / 3:
            done += work()
        rates.append(done / passed)
    return max(rates)


def make_datum(length: int) -> tinker.Datum:
    """Return an example of so many tokens, all of which are learned."""
    tokens = [65 + number % 26 for number in range(length + 1)]
    inputs = {"target_tokens": tokens[1:], "weights": [1.0] * length}
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)  # type: ignore[arg-type]


def count_samples(sampler: tinker.SamplingClient, in_flight: int) -> int:
    """Make so many samples at once."""
    prompt = tinker.ModelInput.from_ints([65 + number % 26 for number in range(TOKENS)])
    params = tinker.SamplingParams(max_tokens=TOKENS, temperature=1.0)
    futures = [sampler.sample(prompt, 1, params) for _ in range(in_flight)]
    return sum(len(future.result().sequences) for future in futures)


def count_trained(training: tinker.TrainingClient, data: Sequence[tinker.Datum]) -> int:
    """Take a step on these examples; return their tokens."""
    future = training.forward_backward(list(data), "cross_entropy")
    step = training.optim_step(ADAM)
    future.result()
    step.result()
    return sum(datum.model_input.length for datum in data)


def measure(service: tinker.ServiceClient) -> tuple[list[Panel], list[Panel]]:
    """Return the panels of the throughput, and those of the cost of a step."""
    training = service.create_lora_training_client("tinker/babble", rank=16)
    sampler = training.save_weights_and_get_sampling_client()
    samples = [(count, count_rate(partial(count_samples, sampler, count))) for count in COUNTS]
    batches = {count: [make_datum(EXAMPLE_TOKENS)] * count for count in COUNTS}
    trained = [
        (count, count_rate(partial(count_trained, training, data)))
        for count, data in batches.items()
    ]
    single = {length: [make_datum(length)] for length in LENGTHS}
    rates = [
        (length, count_rate(partial(count_trained, training, data)))
        for length, data in single.items()
    ]
    throughput = [
        Panel(f"samples of {TOKENS} tokens per second of one core", "samples in flight", samples),
        Panel(
            "tokens trained per second of one core",
            f"examples of {EXAMPLE_TOKENS} tokens in a step",
            trained,
        ),
    ]
    cost = [
        Panel(
            "milliseconds of one core for a step",
            "tokens of its only example",
            [(n, 1000 * n / rate) for n, rate in rates],
        )
    ]
    return throughput, cost


def name_machine() -> str:
    """Return the processor, its cores and today."""
    lines = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*: (.*)", lines)
    processor = found[1] if found else platform.processor() or platform.machine()
    return f"one core of {processor}, {datetime.date.today():%d %B %Y}"


# ------------------------------------------------------------------------------------------ drawing


def draw(panels: Sequence[Panel], title: str, machine: str) -> str:
    """Return the panels one below the other; in a page they take the color of the text."""
    height = (TOP + HEIGHT + 48) * len(panels) + 18
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {height}" '
        'role="img" fill="none" '
        'stroke="currentColor" font-family="ui-sans-serif, system-ui, sans-serif" font-size="13">'
    )
    lines = [head, f"<title>{html.escape(title)}</title><style>{STYLE}</style>"]
    for number, panel in enumerate(panels):
        lines += draw_panel(panel, TOP + number * (TOP + HEIGHT + 48))
    lines.append(write(8, height - 8, "start", f"tinker/babble, LoRA of rank 16; {machine}"))
    return "\n".join([*lines, "</svg>", ""])


def draw_panel(panel: Panel, top: float) -> list[str]:
    """Return the lines of one panel."""
    highest = 1.15 * max(value for _, value in panel.points)
    lines = [write(LEFT, top - 18, "start", panel.title)]
    for share in (0.0, 0.5, 1.0):
        y = top + HEIGHT * (1 - share)
        lines.append(f'<path stroke-opacity="0.25" d="M{LEFT} {y:.0f}h{WIDTH}"/>')
        lines.append(write(LEFT - 8, y + 4, "end", f"{float(f'{highest * share:.2g}'):,g}"))
    places = [
        (LEFT + WIDTH * n / (len(panel.points) - 1), top + HEIGHT * (1 - y / highest))
        for n, (_, y) in enumerate(panel.points)
    ]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    lines.append(
        f'<polyline stroke="{COLOR}" stroke-width="2.5" stroke-linejoin="round" points="{joined}"/>'
    )
    for (x, y), (count, value) in zip(places, panel.points):
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{COLOR}" stroke="none"/>')
        lines.append(write(x, y - 9, "middle", f"{value:,.0f}" if value >= 10 else f"{value:.1f}"))
        lines.append(write(x, top + HEIGHT + 20, "middle", f"{count:,}"))
    lines.append(write(LEFT + WIDTH / 2, top + HEIGHT + 40, "middle", panel.x_label))
    return lines


def write(x: float, y: float, anchor: str, text: str) -> str:
    """Return a text at a place."""
    shown = html.escape(text)
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="currentColor" '
        f'stroke="none">{shown}</text>'
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_server(Settings(data_dir=Path(folder)), "torch") as url,
    ):
        throughput, cost = measure(tinker.ServiceClient(base_url=url))
    machine = name_machine()
    (PICTURES / "throughput.svg").write_text(
        draw(throughput, "Throughput of the local server", machine), encoding="utf-8"
    )
    (PICTURES / "cost.svg").write_text(
        draw(cost, "Time of a training step by its size", machine), encoding="utf-8"
    )
