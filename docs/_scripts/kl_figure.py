"""The figure of docs/regularizers.md, from runs on the local server:
`python docs/_scripts/kl_figure.py` makes it again.

A policy is paid for vowels. It learns from its own samples by importance_sampling, with and without
KL to what it was at first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tinker
from tinker.regularizers._terms import KL
from tinker.regularizers import Regularizer, regularized

FIGURE = Path(__file__).resolve().parents[1] / "regularizers.svg"
PROMPTS, VOWELS, GROUP = b"tr", b"aeiou", 64
STEPS, ADAM = 30, tinker.AdamParams(learning_rate=0.004)
WEIGHTS = (0.0, 0.5, 2.0)
Curves = dict[str, list[float]]


def sample(
    training: tinker.TrainingClient, frozen: tinker.TrainingClient, seed: int
) -> tuple[float, list[tinker.Datum]]:
    """Sample one token after each prompt, many times: the share of vowels, and the data to learn
    from.
    """
    sampler = training.save_weights_and_get_sampling_client()
    rewards, data = [], []
    for prompt in PROMPTS:
        params = tinker.SamplingParams(max_tokens=1, temperature=1.0, seed=seed)
        sequences = (
            sampler.sample(tinker.ModelInput.from_ints([prompt]), GROUP, params).result().sequences
        )
        tokens = np.array([one.tokens[0] for one in sequences])
        group = np.isin(tokens, list(VOWELS)).astype(np.float32)
        rewards.append(group.mean())
        inputs = {
            "target_tokens": tokens,
            "logprobs": np.array([one.logprobs[0] for one in sequences], np.float32),
        }
        inputs["advantages"] = (group - group.mean()) / GROUP
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints([prompt] * GROUP), loss_fn_inputs=inputs
            )
        )
    plain = [
        tinker.Datum(one.model_input, {"target_tokens": one.loss_fn_inputs["target_tokens"]})
        for one in data
    ]
    for datum, output in zip(
        data, frozen.forward(plain, "cross_entropy").result().loss_fn_outputs, strict=True
    ):
        datum.loss_fn_inputs["ref_logprobs"] = output["logprobs"]
    return float(np.mean(rewards)), data


def run(weight: float, steps: int = STEPS) -> Curves:
    """For each step the divergence from the first policy, in nats for each token, and the share of
    vowels.
    """
    with tinker.ServiceClient(base_url="local://toy") as service:
        training, frozen = (
            service.create_lora_training_client("tinker/toy", rank=16, seed=0) for _ in range(2)
        )
        loss = regularized(
            "importance_sampling", [Regularizer(KL("ref_logprobs"), weight * len(PROMPTS))]
        )
        curves: Curves = {"kl": [], "reward": []}
        for step in range(steps):
            reward, data = sample(training, frozen, seed=step)
            output = training.forward_backward_custom(data, loss)
            training.optim_step(ADAM).result()
            curves["kl"].append(output.result().metrics["reg/kl/value"])
            curves["reward"].append(reward)
    return curves


COLOURS = ("#d1495b", "#2e86ab", "#3c9d5d")
LEFT, TOP, WIDTH, HEIGHT, GAP = 44, 34, 270, 180, 74  # of a panel, and between the two
STYLE = "svg:root{color:#24292f}@media(prefers-color-scheme:dark){svg:root{color:#d0d7de}}"


def draw(runs: dict[float, Curves]) -> str:
    """Both curves of every run, side by side."""
    largest = max(max(curves["kl"]) for curves in runs.values())
    panels = [
        ("kl", "distance from the reference (k3, nats per token)", np.ceil(largest * 10) / 10),
        ("reward", "share of vowels", 1.0),
    ]
    width, height = 2 * (LEFT + WIDTH) + GAP - 30, TOP + HEIGHT + 62
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'fill="none" stroke="currentColor" '
        'font-family="ui-sans-serif, system-ui, sans-serif" font-size="12">',
        (
            "<title>A policy that is paid for vowels, held by KL of several "
            f"weights</title><style>{STYLE}</style>"
        ),
    ]
    for number, (name, title, top) in enumerate(panels):
        left = LEFT + number * (WIDTH + GAP)
        lines += _frame(left, title, top)
        for (weight, curves), colour in zip(runs.items(), COLOURS, strict=True):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _place(left, curves[name], top))
            lines.append(
                f'<polyline stroke="{colour}" stroke-width="1.8" points="{points}"><title>weight '
                f"{weight:g}</title></polyline>"
            )
    for number, (weight, colour) in enumerate(zip(runs, COLOURS, strict=True)):
        x, y = LEFT + number * 130, height - 12
        lines.append(f'<path stroke="{colour}" stroke-width="3" d="M{x} {y - 4}h20"/>')
        lines.append(
            f'<text x="{x + 26}" y="{y}" fill="currentColor" stroke="none">KL with weight '
            f"{weight:g}</text>"
        )
    return "\n".join([*lines, "</svg>", ""])


def _place(left: int, values: list[float], top: float) -> list[tuple[float, float]]:
    return [
        (left + WIDTH * step / (len(values) - 1), TOP + HEIGHT * (1 - max(value, 0.0) / top))
        for step, value in enumerate(values)
    ]


def _frame(left: int, title: str, top: float) -> list[str]:
    def text(x: float, y: float, anchor: str, said: str) -> str:
        return (
            f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="currentColor" '
            f'stroke="none">{said}</text>'
        )

    lines = [
        text(left, TOP - 14, "start", title),
        text(left + WIDTH, TOP + HEIGHT + 18, "end", f"step {STEPS - 1}"),
    ]
    lines.append(text(left, TOP + HEIGHT + 18, "start", "0"))
    for share in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1 - share)
        lines.append(f'<path stroke-opacity="0.25" d="M{left} {y:.0f}h{WIDTH}"/>')
        lines.append(text(left - 6, y + 4, "end", f"{top * share:g}"))
    return lines


if __name__ == "__main__":
    FIGURE.write_text(draw({weight: run(weight) for weight in WEIGHTS}), encoding="utf-8")
