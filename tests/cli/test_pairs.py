"""``tinker train --dpo``: preference pairs, what is learned from them, and its reference."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from cli.conftest import Ask, Call, interrupt, lines_of, write
from click.testing import Result
from support.tolerances import FLOAT64, assert_near, near

from tinker.local.engines.toy import ToyEngine

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TRAIN = ("--dpo", "--rank", "4", "--batch-size", "2", "--lr", "0.02")


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """Five pairs, whose answers differ in length and beginning: batches of two, two and one."""
    answers = (
        ("yes", "not at all"),
        ("ja, ja", "nein"),
        ("oui", "non"),
        ("si, claro", "nunca"),
        ("da", "nyet"),
    )
    rows = [
        {"prompt": f"{at}? ", "chosen": chosen, "rejected": rejected}
        for at, (chosen, rejected) in enumerate(answers)
    ]
    return write(tmp_path / "pairs.jsonl", *rows)


def steps_of(result: Result) -> dict[int, dict[str, float]]:
    """The numbers of each step that do not depend on the time."""
    names = ("loss", "margin", "accuracy", "grad_norm:mean", "learning_rate", "tokens")
    return {
        line["step"]: {name: line[name] for name in names}
        for line in lines_of(result.stdout, "step")
    }


class Watched(ToyEngine):
    """An engine that keeps what it is sent and answers, and interrupts before a step."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[bool, list[Any], list[Any]]] = []
        self.stop_at: int | None = None
        self.taken = 0

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[Any],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> Any:
        done = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        self.passes.append(
            (
                backward,
                list(data),
                [np.asarray(one["logprobs"], np.float64) for one in done.outputs],
            )
        )
        return done

    def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
        self.taken += 1
        if self.taken == self.stop_at:
            interrupt()
        return super().optim_step(adapter_id, params)


@pytest.fixture
def watched(serve: Callable[..., str]) -> tuple[str, Watched]:
    engine = Watched()
    return serve(engine), engine


def dpo(
    logprobs: Sequence[Any], references: Sequence[Any], masks: Sequence[Any], beta: float
) -> tuple[Any, Any]:
    """The loss and the margin of each pair, as the paper on DPO and TRL have them."""
    policy, reference = (
        torch.stack([(part * mask).sum() for part, mask in zip(parts, masks, strict=True)])
        for parts in (logprobs, references)
    )
    chosen_rewards, rejected_rewards = (beta * (policy - reference)[first::2] for first in (0, 1))
    margins = chosen_rewards - rejected_rewards
    return -torch.nn.functional.logsigmoid(margins), margins


def text_of(example: Any) -> str:
    return bytes(example.tokens.tolist()).decode()  # the last target ends it


def test_the_loss_is_that_of_dpo(call: Call, pairs: str, watched: tuple[str, Watched]) -> None:
    """Loss, margin, accuracy and the gradient that is sent are those of DPO, computed by torch from
    the same log-probabilities.

    A step of several batches reports the means over its pairs. The reference are the weights before
    the first step.
    """
    url, engine = watched
    result = call(
        f"-f json train {pairs}",
        *TRAIN,
        "--beta",
        "0.3",
        "--accumulate",
        "2",
        "--epochs",
        "3",
        base_url=url,
        code=0,
    )
    before = [one for one in engine.passes[:3] if not one[0]]
    references = {
        text_of(one): torch.tensor(part)
        for _, data, parts in before
        for one, part in zip(data, parts, strict=True)
    }
    masks = {
        text_of(one): torch.tensor(one.loss_inputs["weights"])
        for _, data, _ in before
        for one in data
    }
    rows = [json.loads(line) for line in Path(pairs).read_text().splitlines()]
    lengths = {
        row["prompt"] + row[name]: len(row[name]) for row in rows for name in ("chosen", "rejected")
    }
    assert {text: mask.sum().item() for text, mask in masks.items()} == {
        text: length + 1 for text, length in lengths.items()
    }
    order = {
        row["prompt"] + row[name]: (row["prompt"], name)
        for row in rows
        for name in ("chosen", "rejected")
    }
    measured: list[tuple[Any, Any]] = []
    for (is_sent, data, parts), (is_learned, learned, after) in zip(
        engine.passes[3::2], engine.passes[4::2], strict=True
    ):
        assert (is_sent, is_learned) == (False, True)
        texts = [text_of(one) for one in data]
        names = [order[text] for text in texts]
        assert [name for _, name in names] == ["chosen", "rejected"] * (len(names) // 2)
        assert [prompt for prompt, _ in names[0::2]] == [prompt for prompt, _ in names[1::2]]
        leaves = [torch.tensor(part, requires_grad=True) for part in parts]
        kept = [references[text] for text in texts], [masks[text] for text in texts], 0.3
        dpo(leaves, *kept)[0].sum().backward()
        for one, leaf in zip(learned, leaves, strict=True):
            assert_near(one.loss_inputs["weights"], -leaf.grad, 2)
        measured.append(dpo([torch.tensor(part) for part in after], *kept))
    steps = list(steps_of(result).values())
    assert len(steps) == 6
    for step, first in zip(steps, (0, 2, 3, 5, 6, 8), strict=True):
        batches = measured[first : first + (2 if first % 3 == 0 else 1)]
        losses, margins = (torch.cat(values) for values in zip(*batches, strict=True))
        assert step["loss"] == near(losses.mean().item(), 100, 100.0, unit=FLOAT64)
        assert step["margin"] == near(margins.mean().item(), 100, 100.0, unit=FLOAT64)
        assert step["accuracy"] == (margins > 0).double().mean().item()
    assert abs(steps[0]["margin"]) < 1e-3 < steps[-1]["margin"]


def test_pairs_are_learned(
    call: Call, ask: Ask, pairs: str, tmp_path: Path, watched: tuple[str, Watched]
) -> None:
    """In a few steps every pair has a positive margin, which log, lines and page show."""
    url, _ = watched
    held_out = write(
        tmp_path / "held_out.jsonl", {"prompt": "9? ", "chosen": "yes", "rejected": "not"}
    )
    result = call(
        f"train {pairs}",
        *TRAIN,
        "--epochs",
        "4",
        "--eval-file",
        held_out,
        "--log",
        "log.jsonl",
        base_url=url,
        code=0,
    )
    log = (tmp_path / "log.jsonl").read_text()
    first, *_, last = lines_of(log, "step")
    assert (first["margin"], first["accuracy"], last["accuracy"]) == (0, 0, 1)
    assert last["loss"] < first["loss"] == near(0.6931471805599453)
    assert lines_of(log, "start")[0]["examples"] == 5
    before, after = lines_of(log, "evaluation")
    assert (before["margin"], after["accuracy"]) == (0, 1)
    assert after["loss"] < before["loss"]
    assert "\nstep 1/12 loss 0.6931, margin 0.0000, accuracy 0.0000, " in result.stderr
    assert "\nstep 0/12 evaluation loss 0.6931, margin 0.0000, accuracy 0.0000\n" in result.stderr
    run = lines_of(log, "start")[0]["training_run_id"]
    curves = httpx.get(f"{url}/overview", params={"run": run}).json()["curves"]
    for name in ("loss", "margin", "accuracy"):
        assert curves[name] == [[line["step"], line[name]] for line in lines_of(log, "step")]
        assert curves[f"evaluation {name}"] == [
            [line["step"], line[name]] for line in (before, after)
        ]
    compared = ask("run compare log.jsonl --metric margin")["runs"][0]
    assert compared["best"] == round(max(line["margin"] for line in lines_of(log, "step")), 6)


@pytest.mark.parametrize("has_origin", [False, True])
def test_a_resumed_run_keeps_its_reference(
    call: Call, pairs: str, tmp_path: Path, watched: tuple[str, Watched], has_origin: bool
) -> None:
    """With --resume, the reference is what the run began with: a new adapter, or --from."""
    url, engine = watched
    origin: list[str] = []
    if has_origin:
        text = write(tmp_path / "text.jsonl", {"text": "yes? no? 1? 2? ja, nein, oui"})
        assert (
            call(
                "train",
                text,
                "--rank",
                "4",
                "--lr",
                "0.05",
                "--epochs",
                "3",
                "--name",
                "mine",
                base_url=url,
            ).exit_code
            == 0
        )
        origin = ["--from", "mine"]
    rank = TRAIN[:1] + TRAIN[3:] if has_origin else TRAIN
    arguments = (
        "-f",
        "json",
        "train",
        pairs,
        *rank,
        *origin,
        "--epochs",
        "2",
        "--eval-file",
        pairs,
    )
    whole = call(*arguments, "--name", "whole", base_url=url, code=0)
    engine.taken, engine.stop_at = 0, 3
    first = call(*arguments, "--name", "mine", base_url=url, code=130)
    second = call(
        f"-f json train {pairs}",
        *origin,
        "--resume",
        "--name",
        "mine",
        "--eval-file",
        pairs,
        base_url=url,
        code=0,
    )
    before, after = steps_of(first), steps_of(second)
    assert (len(before) >= 3, bool(after)) == (True, True)
    assert before | after == steps_of(whole)
    assert lines_of(second.stdout, "evaluation") == lines_of(whole.stdout, "evaluation")[1:]


def test_forms_of_pairs(call: Call, tmp_path: Path) -> None:
    """Messages after a prompt, and whole chats whose beginning is the prompt, also with its text
    beside them, are the same.

    In texts without a prompt, what both begin with has no influence.
    """
    before = [user("a"), assistant("b"), user("c")]
    chosen, rejected = [assistant("yes"), user("sure?"), assistant("yes!")], [assistant("no")]
    whole = {"chosen": before + chosen, "rejected": before + rejected}
    chats = [
        {"prompt": before, "chosen": chosen, "rejected": rejected},
        whole,
        {**whole, "prompt": "a"},
        {**whole, "prompt": None, "score_chosen": 1.5},
    ]
    texts = [
        {"prompt": "1? ", "chosen": "yes", "rejected": "no"},
        {"chosen": "1? yes", "rejected": "1? no"},
    ]
    for lines in (chats, texts):
        learned: list[list[list[float]]] = []
        for line in lines:
            result = call(
                "-f json train",
                write(tmp_path / "one.jsonl", line),
                *TRAIN,
                "--epochs",
                "3",
                code=0,
            )
            learned.append(
                [
                    [step["loss"], step["margin"], step["tokens"]]
                    for step in steps_of(result).values()
                ]
            )
        for steps in learned[1:]:
            assert steps == (
                learned[0] if lines is chats else [near(step, 100, 10.0) for step in learned[0]]
            )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            (
                'with --dpo, "chosen" and "rejected" must both be strings, or both lists of '
                "messages; got prompt, chosen\n"
            ),
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": None},
            '"chosen" and "rejected" must both be strings',
        ),
        (
            {"prompt": "a", "chosen": "b", "rejectd": "c"},
            'unknown key "rejectd"; did you mean "rejected"?',
        ),
        ({"prompt": "a", "completion": "b", "label": True}, "; got prompt, completion, label"),
        ({"prompt": "a", "completion": "b"}, "; got prompt, completion"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "b"},
            '"chosen" and "rejected" are equal, so neither can be preferred',
        ),
        (
            {"chosen": "b", "rejected": "c"},
            '"chosen" and "rejected" need "prompt" beside them, or a common beginning',
        ),
        ({"question": "a", "chosen": "bc", "rejected": "bd"}, 'rename "question" to "prompt"'),
        (
            {"chosen": [assistant("b")], "rejected": [assistant("c")]},
            'need "prompt" beside them, or a common beginning',
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": ["c"]},
            "must both be strings, or both lists of messages",
        ),
        (
            {"prompt": "a", "chosen": 1, "rejected": 2},
            "must both be strings, or both lists of messages",
        ),
        (
            {"prompt": [user("a")], "chosen": "b", "rejected": "c"},
            "the prompt and the chosen answer must both be strings, or both",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "the rejected answer is empty"),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("a")]},
            "the rejected answer is empty",
        ),
        (
            {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [user("c")]},
            'no message has the role "assistant"',
        ),
        (
            {"prompt": "a", "chosen": [assistant("b")], "rejected": [assistant("c")]},
            "must both be strings, or both lists",
        ),
    ],
)
def test_lines_that_are_no_pairs(
    call: Call, pairs: str, tmp_path: Path, line: object, words: str
) -> None:
    """A line that is no pair is one sentence with file and line, before a server is asked."""
    wrong = write(
        tmp_path / "wrong.jsonl", json.loads(Path(pairs).read_text().splitlines()[0]), line
    )
    for arguments in ((wrong,), (pairs, "--eval-file", wrong)):
        result = call("train", *arguments, "--dpo", base_url="http://127.0.0.1:1")
        assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
        assert result.stderr.startswith(f"Error: {wrong}, line 2: ")
        assert words in result.stderr


def test_an_estimate_of_pairs_equals_the_usage(ask: Ask, pairs: str) -> None:
    """The estimate counts the pass for the reference, and the two passes of each step."""
    rows = [json.loads(line) for line in Path(pairs).read_text().splitlines()]
    once = sum(len(row["prompt"] + row[name]) for row in rows for name in ("chosen", "rejected"))
    estimate = ask(f"train {pairs}", *TRAIN, "--epochs", "2", "--estimate")
    assert estimate["tokens"]["trained"] == 5 * once
    assert estimate["steps"] == 6
    assert ask(f"train {pairs}", *TRAIN, "--epochs", "2")["tokens"] == estimate["tokens"]
    assert (
        ask(f"train {pairs}", *TRAIN, "--max-steps", "1", "--estimate")["tokens"]["trained"]
        < 3 * once
    )


def test_pairs_that_are_too_long(
    call: Call, refuse: Any, serve: Callable[..., str], pairs: str, tmp_path: Path
) -> None:
    """A pair of which --max-length leaves no answer is left out; one too long is an error."""
    long = write(tmp_path / "long.jsonl", {"prompt": "a" * 20, "chosen": "b", "rejected": "c"})
    Path(long).write_text(Path(pairs).read_text() + Path(long).read_text())
    result = call(f"-f json train {long}", *TRAIN, "--max-length", "12")
    assert (result.exit_code, lines_of(result.stdout, "start")[0]["examples"]) == (0, 5)
    assert (
        f"1 example of {long} left out: nothing to learn within --max-length 12\n" in result.stderr
    )
    url = serve(ToyEngine(max_context_length=16))
    said = "long.jsonl, line 6: 21 tokens; tinker/toy takes 16\n"
    refuse(1, said, f"train {long}", *TRAIN, base_url=url)
