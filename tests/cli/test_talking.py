"""``tinker chat``, ``tinker sample --file``, and the curves of ``tinker run``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.conftest import Ask, Call, write
from support.tolerances import FLOAT64, near

import tinker
from tinker._tokenizers import load
from tinker.cli.clients import StopCutter
from tinker.local.engines.toy import ToyEngine
from tinker.testing import ScriptedSample


def test_a_conversation(call: Call, run: Any, tmp_path: Path) -> None:
    """Turns are answered in order; /system, /model and /save work in between."""
    pytest.importorskip("transformers")
    lines = [
        "hi",
        "/system Be short.",
        f"/model {run.sampler}",
        "/model nobody/nothing",
        "more",
        "/save chat.jsonl",
        "/what now",
        "/save",
        "/quit",
        "no",
    ]
    result = call("chat --max-tokens 4 --temperature 0", input="\n".join(lines), code=0)
    assert f"now {run.sampler}" in result.stderr
    assert (
        "\nError: base model 'nobody/nothing' is not offered; this server has 'tinker/toy'; to "
        "serve it: tinker serve --model nobody/nothing"
    ) in result.stderr
    assert "\nunknown command /what\n/system TEXT " in result.stderr
    assert result.stderr.endswith("Ctrl-C stops an answer\n/save needs a file name\n")
    saved = json.loads((tmp_path / "chat.jsonl").read_text())["messages"]
    assert [turn["role"] for turn in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert (saved[0]["content"], saved[3]["content"]) == ("Be short.", "more")
    assert saved[2]["content"] in result.stdout
    call("chat --max-tokens 4", input="hi\n/reset\n/save empty.jsonl\n", code=0)
    assert json.loads((tmp_path / "empty.jsonl").read_text())["messages"] == []


def test_answers_of_a_chat_as_json(call: Call) -> None:
    """With -f json each answer is one line with the fields of a sample, and there is no other."""
    pytest.importorskip("transformers")
    result = call("-f json chat --max-tokens 4 --temperature 0", input="hi\nyo\n", code=0)
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(answer) for answer in answers] == [
        ["role", "content", "tokens", "stop_reason"]
    ] * 2
    assert [
        (answer["role"], len(answer["tokens"]), answer["stop_reason"]) for answer in answers
    ] == [("assistant", 4, "length")] * 2


FILES = "sample --file prompts.jsonl --out answers.jsonl"
ARGUMENTS = f"{FILES} --max-tokens 3 --temperature 0"


def test_a_file_of_prompts_is_answered_and_resumed(ask: Ask, tmp_path: Path) -> None:
    """Answers are in order and keep their other fields; an incomplete file is completed."""
    pytest.importorskip("transformers")
    rows: list[dict[str, Any]] = [
        {"prompt": f"{number}:", "id": number} for number in range(100)
    ] + [{"prompt": [5, 6]}]
    write(tmp_path / "prompts.jsonl", *rows)
    assert ask(ARGUMENTS) == {"out": "answers.jsonl", "answers": 101, "new": 101}
    out = tmp_path / "answers.jsonl"
    whole = out.read_text()
    answers = [json.loads(line) for line in whole.splitlines()]
    assert [one["index"] for one in answers] == list(range(101))
    assert (answers[7]["id"], answers[7]["prompt"], len(answers[7]["samples"])) == (7, "7:", 1)
    out.write_text(whole[: len(whole) // 2])
    new = ask(ARGUMENTS)["new"]
    assert 0 < new < 101
    assert [json.loads(line) for line in out.read_text().splitlines()] == answers
    assert ask(ARGUMENTS)["new"] == 0


@pytest.mark.parametrize(
    ("prompts", "answers", "words"),
    [
        (
            '{"question": "a"}\n',
            None,
            'line 1: a line is an object with "prompt" or "messages"; got question: rename '
            '"question" to',
        ),
        (
            '{"prompt": [1, "b"]}\n',
            None,
            'line 1: "prompt" must be text or a list of integers from 0; at position 1 it has "b"',
        ),
        ('{"promt": "a"}\n', None, 'line 1: unknown key "promt"; did you mean "prompt"?'),
        ('{"prompt": ""}\n', None, 'line 1: "prompt" is empty'),
        ("\n", None, "has no prompts"),
        (
            '{"prompt": "a"}\n',
            '{"index": 0, "prompt": "b"}\n',
            "answers.jsonl, line 1: not the answer to one of the prompts",
        ),
        ('{"prompt": "a"}\n', "hello\n", "does not contain answers of this command"),
    ],
)
def test_files_that_are_wrong(
    refuse: Any, tmp_path: Path, prompts: str, answers: str | None, words: str
) -> None:
    """An invalid line, or a file with other answers, is an error; nothing is asked or written."""
    (tmp_path / "prompts.jsonl").write_text(prompts)
    if answers is not None:
        (tmp_path / "answers.jsonl").write_text(answers)
    refuse(1, words, ARGUMENTS)
    assert answers is None or (tmp_path / "answers.jsonl").read_text() == answers


@pytest.mark.parametrize("stop", ["", "--stop x"])
def test_the_end_of_a_text_is_a_token_and_no_text(
    ask: Ask, answering: Any, tmp_path: Path, stop: str
) -> None:
    """The token that ends a sample is not shown; one within it is, unless --stop replaces it."""
    tokenizer = load("tinker/toy")
    end = tokenizer.eos_token_id
    url, _ = answering(ScriptedSample([*b"hi", end, *b"!", end]))
    (sample,) = ask(f"sample --max-tokens 8 {stop}", "2 + 2 =", base_url=url)["samples"]
    shown = "hi!" if stop else f"hi{tokenizer.decode([end])}!"
    assert (sample["text"], sample["tokens"][-1]) == (shown, end)
    write(tmp_path / "prompts.jsonl", {"prompt": "a"})
    ask(f"{FILES} --max-tokens 8 {stop}", base_url=url)
    (answer,) = json.loads((tmp_path / "answers.jsonl").read_text())["samples"]
    assert answer["text"] == shown


def test_an_empty_answer_is_explained(call: Call, answering: Any) -> None:
    """An answer that ends at its first token is an empty line, and the error stream says why."""
    url, _ = answering(ScriptedSample([load("tinker/toy").eos_token_id]))
    plain, chat = (call(f"sample apple {more}", base_url=url) for more in ("", "--chat"))
    why = "An empty answer ended at its first token."
    assert (plain.stdout, chat.stdout) == ("\n", "\n")
    assert f"{why} If the model was trained on messages, add --chat.\n" in plain.stderr
    assert f"{why}\n" in chat.stderr


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (r"\n", "\n"),
        (r"a\tb", "a\tb"),
        (r"\\n", r"\n"),
        ("\n", "\n"),
        (r"\d", r"\d"),
        ("\\", "\\"),
        (r"\\\n", "\\\n"),
    ],
)
def test_escapes_in_a_stop(
    call: Call, answering: Any, tmp_path: Path, typed: str, sent: str
) -> None:
    """What a shell cannot type is written as in Python; anything else stands for itself."""
    write(tmp_path / "prompts.jsonl", {"prompt": "a"})
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return 1.0\n")
    url, server = answering("hi")
    for command in ("sample a", "train prompts.jsonl --grpo reward.py --group-size 2"):
        call(f"{command} --stop", typed, base_url=url, code=0)
    stops = [one.json["sampling_params"]["stop"] for one in server.requests("asample")]
    assert stops == [[sent]] * 2


def test_a_training_checkpoint_is_not_sampled(
    call: Call, refuse: Any, run: Any, server: str
) -> None:
    """The error names the kind and the command that makes one to sample from, which works."""
    pytest.importorskip("transformers")
    advice = (
        "To save weights that can be sampled, run: tinker checkpoint "
        f"create --from {run.training} --sampler\n"
    )
    said = f"Error: {run.training} is a training checkpoint, which cannot be sampled\n"
    told = refuse(1, said, f"sample hi --model {run.training}", base_url=server)
    assert told.endswith(advice)
    talked = call("chat", input=f"/model {run.training}\n")
    assert (talked.exit_code, talked.stderr.endswith(advice)) == (0, True)
    made = call(f"-f json checkpoint create --from {run.training} --sampler")
    path = json.loads(made.stdout)["sampler_path"]
    assert call(f"sample hi --model {path} --max-tokens 1").exit_code == 0


@pytest.mark.parametrize(
    ("drawn", "shown"),
    [
        ([*b"hi\nUser: and more"], "hi"),
        ([*b"hi", 256, *b"and more"], "hi"),
        ([*b"a\nUse: b\nUser:", 256], "a\nUse: b"),
        ([*b"hi\nUse"], "hi\nUse"),
    ],
    ids=["the next turn", "the end of the text", "almost the next turn", "a part of the next turn"],
)
def test_an_answer_in_plain_text_ends(
    call: Call, answering: Any, tmp_path: Path, drawn: list[int], shown: str
) -> None:
    """Without a chat template an answer ends before the user's next turn or the end of the text."""
    tokens = [load("tinker/toy").eos_token_id if token == 256 else token for token in drawn]
    url, _ = answering(ScriptedSample(tokens))
    command = f"chat --max-tokens {len(tokens)}"
    result = call(command, base_url=url, input="hello\n/save chat.jsonl\n")
    assert result.stdout == f"{shown}\n", result.stderr
    assert json.loads((tmp_path / "chat.jsonl").read_text())["messages"][-1]["content"] == shown


def test_an_answer_fits_behind_the_conversation(call: Call, serve: Callable[..., str]) -> None:
    """Answers fit the context length; where there is no room, /reset starts over."""
    pytest.importorskip("transformers")
    url = serve(ToyEngine(max_context_length=40))
    long = "a very long message that leaves no room"
    result = call("chat --temperature 0", base_url=url, input=f"hi\n{long}\n/reset\nhi\n", code=0)
    assert "; tinker/toy takes 40; /reset starts over" in result.stderr
    first, last = result.stdout.splitlines()[0], result.stdout.splitlines()[-1]
    assert first == last


def test_text_that_may_become_a_stop_is_held_back() -> None:
    """The text up to the stop passes unchanged, however it is split."""
    text = "a\nb\nUse\nUser: c<end>"
    for size in range(1, len(text)):
        cutter = StopCutter(["\nUser:", "<end>"])
        pieces = [cutter.add(text[at : at + size]) for at in range(0, len(text), size)]
        assert ("".join(pieces) + cutter.end(), cutter.is_over) == ("a\nb\nUse", True)
    cutter = StopCutter(["\nUser:"])
    assert (cutter.add("a\nUs"), cutter.add("er"), cutter.end(), cutter.is_over) == (
        "a",
        "",
        "\nUser",
        False,
    )


def test_a_chat_without_a_template(ask: Ask) -> None:
    """Without a chat template, a message is sampled as a line that an answer follows."""
    sample = "sample --max-tokens 8 --seed 3"
    chat, text = ask(f"{sample} --chat hi"), ask(sample, "User: hi\nAssistant:")
    assert chat["samples"][0]["tokens"] == text["samples"][0]["tokens"]


@pytest.fixture
def logs(tmp_path: Path) -> tuple[str, str]:
    """Two logs of runs that have ended; the second was resumed at its second step."""
    for name, losses in (("a", [4.0, 3.0, 2.0]), ("b", [5.0, 9.0, 1.0])):
        lines: list[dict[str, Any]] = [{"type": "start"}]
        lines += [
            {"type": "step", "step": at, "steps": 3, "loss": loss, "tokens_per_second": 10.0}
            for at, loss in enumerate(losses, 1)
        ]
        lines += [{**lines[2], "loss": 2.5}, lines[3]] if name == "b" else []
        write(tmp_path / f"{name}.jsonl", *lines, {"type": "result"})
    return "a.jsonl", "b.jsonl"


def test_runs_are_compared(ask: Ask, call: Call, logs: tuple[str, str], tmp_path: Path) -> None:
    """Each run is a row with the ends of its curve, and the curves are drawn together."""
    rows = ask("run compare", *logs)["runs"]
    assert [(row["steps"], row["first"], row["best"], row["last"]) for row in rows] == [
        (3, 4.0, 2.0, 2.0),
        (3, 5.0, 1.0, 1.0),
    ]
    shown = call("run compare", *logs, "--plot", "both.svg").stdout
    assert "* a.jsonl   o b.jsonl" in shown
    assert "Tokens/s" in shown
    assert (tmp_path / "both.svg").read_text().count("<polyline") == 2
    assert "There are: " in call("run compare", *logs, "--metric", "reward").stderr
    (tmp_path / "no.jsonl").write_text("hello\n")
    assert (
        "no.jsonl, line 1: not JSON: Expecting value (column 1)\nA log has"
        in call("run compare no.jsonl").stderr
    )


def test_equal_curves_are_both_drawn(call: Call, tmp_path: Path) -> None:
    """Marks of equal curves take turns, and a column that no run fills is left out."""
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / name, *({"step": at, "loss": 5.0 - at} for at in range(5)))
    shown = call("run compare a.jsonl b.jsonl").stdout
    chart = "".join(line.partition("|")[2] for line in shown.splitlines())
    assert (chart.count("*"), chart.count("o")) == (3, 2)
    assert "Tokens/s" not in shown


def test_runs_of_different_metrics_are_compared(
    ask: Ask, call: Call, logs: tuple[str, str], tmp_path: Path
) -> None:
    """A run without the metric lists those that it has; a metric of all runs is preferred."""
    rows = [
        {"type": "step", "step": at, "steps": 2, "reward": at / 2, "tokens": 9} for at in (1, 2)
    ]
    write(tmp_path / "g.jsonl", *rows)
    result = call("run compare a.jsonl g.jsonl")
    assert "g.jsonl: no metric 'loss'; it has reward\n" in result.stderr
    assert [row["steps"] for row in ask("run compare a.jsonl g.jsonl")["runs"]] == [3, 2]
    write(tmp_path / "both.jsonl", {"step": 1, "loss": 2.0, "reward": 0.5})
    assert ask("run compare both.jsonl g.jsonl")["metric"] == "reward"


def test_a_run_without_steps_or_without_the_metric(call: Call, tmp_path: Path) -> None:
    """An empty run is said to have no steps yet, and a step without the metric has no number."""
    (tmp_path / "empty.jsonl").write_text("")
    assert call("run watch empty.jsonl --once").stderr == "empty.jsonl has no steps yet\n"
    (tmp_path / "some.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "eval": 1.0}\n')
    said = call("run watch some.jsonl --metric eval --once").stdout
    assert said == "step 1 without eval\nstep 2 eval 1.0000\n"


def test_a_run_is_watched_to_its_end(call: Call, logs: tuple[str, str], tmp_path: Path) -> None:
    """Into a pipe each complete step is a line, and the command ends with the run."""
    with (tmp_path / "a.jsonl").open("a") as log:
        log.write('{"type": "st')
    result = call("run watch a.jsonl", code=0)
    assert result.stdout.splitlines() == [
        "step 1/3 loss 4.0000",
        "step 2/3 loss 3.0000",
        "step 3/3 loss 2.0000",
    ]
    assert json.loads(call("-f json run watch a.jsonl").stdout.splitlines()[1])["loss"] == 4.0


COOKBOOK = [
    {"progress/batch": at, "train_mean_nll": 4.0 - at, "lr": 0.1, "done": False} for at in range(3)
]
NESTED = [{"env": {"all": {"reward": {"total": at / 4}}}, "note": "x"} for at in range(3)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            COOKBOOK,
            [
                "step 0 train_mean_nll 4.0000",
                "step 1 train_mean_nll 3.0000",
                "step 2 train_mean_nll 2.0000",
            ],
        ),
        (NESTED, [f"step {at} env/all/reward/total {(at - 1) / 4:.4f}" for at in (1, 2, 3)]),
        (
            [{"step": 5, "loss": 1, "max_steps": 9, "progress/done_frac": 1.0}],
            ["step 5/9 loss 1.0000"],
        ),
        ([{"step": 5, "accuracy": 0.5}], ["step 5 accuracy 0.5000"]),
    ],
)
def test_metrics_of_other_programs(
    call: Call, tmp_path: Path, lines: list[dict[str, Any]], expected: list[str]
) -> None:
    """Any script's metrics are read: steps by their usual names, and the loss or the reward."""
    write(tmp_path / "metrics.jsonl", *lines)
    result = call("run watch metrics.jsonl --once")
    assert (result.exit_code, result.stdout.splitlines()) == (0, expected), result.output
    assert call("run compare metrics.jsonl").exit_code == 0


def test_a_share_of_one_is_the_end(call: Call, tmp_path: Path) -> None:
    """A run whose last line says that all is done is not followed any further."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2.0, "progress": {"done_frac": 1.0}}\n'
    )
    assert call("run watch metrics.jsonl").stdout == "step 1 loss 2.0000\n"


def test_the_best_reward_is_the_highest(ask: Ask, tmp_path: Path) -> None:
    """The best reward is the highest and the best loss the lowest; speed may be missing."""
    (tmp_path / "m.jsonl").write_text(
        '{"reward": 1, "nll": 1}\n{"reward": 3, "nll": 4}\n{"reward": 2, "nll": 2}\n'
    )
    assert ask("run compare m.jsonl")["runs"][0]["best"] == 3
    row = ask("run compare m.jsonl --metric nll")["runs"][0]
    assert (row["best"], row["tokens_per_second"]) == (1, None)


def test_every_step_of_a_long_run_is_watched(ask: Ask, server: str) -> None:
    """More steps than the page of the server draws are all printed."""
    with tinker.ServiceClient(base_url=server) as service:
        training = service.create_lora_training_client("tinker/toy", rank=1)
        steps = [training.optim_step(tinker.AdamParams(learning_rate=0.1)) for _ in range(450)]
        steps[-1].result(60)
        assert (
            ask("run compare", training.model_id, "--metric", "grad_norm:mean")["runs"][0]["steps"]
            == 450
        )


def test_runs_of_the_server(call: Call, ask: Ask, refuse: Any, server: str) -> None:
    """A run of a local server is watched and compared by its ID, while it goes on and after it."""
    with tinker.ServiceClient(base_url=server) as service:
        training = service.create_lora_training_client("tinker/toy", rank=4)
        inputs = {"target_tokens": [2, 3]}
        datum = tinker.Datum(tinker.ModelInput.from_ints([1, 2]), inputs)
        for _ in range(2):
            training.forward_backward([datum], "cross_entropy")
            training.optim_step(tinker.AdamParams(learning_rate=0.1)).result(10)
        run_id = training.model_id
        lines = call(f"run watch {run_id} --once").stdout.splitlines()
        assert [line.partition(" loss per token ")[0] for line in lines] == ["step 1", "step 2"]
    first = json.loads(call(f"-f json run watch {run_id} --once").stdout.splitlines()[0])
    assert first["loss:sum"] == near(
        first["loss per token"] * first["weights:sum"], 2, unit=FLOAT64
    )
    assert ask(f"run compare {run_id}")["runs"][0]["steps"] == 2
    said = "There is no file 'nobody:train:0', and the server keeps no curve of such a run"
    refuse(1, said, "run watch nobody:train:0", base_url=server)


def test_a_run_on_examples_beside_one_with_rewards(call: Call, ask: Ask, server: str) -> None:
    """An evaluation before the first step does not count, nor are unlike runs compared by a sum."""
    runs: list[str] = []
    losses: dict[tinker.types.LossFnType, dict[str, list[float]]] = {
        "cross_entropy": {},
        "importance_sampling": {"logprobs": [-1.0, -1.0], "advantages": [1.0, 1.0]},
    }
    for loss, more in losses.items():
        with tinker.ServiceClient(base_url=server, telemetry=True) as service:
            training = service.create_lora_training_client("tinker/toy", rank=4)
            datum = tinker.Datum(
                tinker.ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], **more}
            )
            telemetry = training.get_telemetry()
            assert telemetry is not None
            name = "evaluation loss" if loss == "cross_entropy" else "reward_std"
            telemetry.log("metrics", {"training_run_id": training.model_id, "step": 0, name: 3.0})
            training.forward_backward([datum], loss).result(10)
            training.optim_step(tinker.AdamParams(learning_rate=0.1)).result(10)
            runs.append(training.model_id)
    compared = ask("run compare", *runs)
    assert (compared["metric"], [run["steps"] for run in compared["runs"]]) == (
        "loss per token",
        [1, 1],
    )
    assert (
        f"{runs[1]}: no metric 'loss per token'; it has reward_std, loss:sum\n"
        in call("run compare", *runs).stderr
    )


def test_servers_without_curves(call: Call, refuse: Any, scripted: Callable[..., str]) -> None:
    """A server without curves is an error with advice; a missing file is reported as a file."""
    url = scripted("/overview", 404)
    refuse(1, "this server keeps no curves", "run watch some:train:0", base_url=url)
    assert (
        call("run watch none.jsonl", base_url=url).stderr == "Error: There is no file none.jsonl\n"
    )
    assert call("run watch examples.txt").exit_code == 1
