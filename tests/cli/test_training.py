"""``tinker train``: what it checks first, how it is interrupted and resumed, what it reports, and
rewards of the user's.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from click.testing import Result
from starlette.responses import JSONResponse

from tinker.local import Settings, State, close_in_process, create_app, running_server
from tinker.local.engines.toy import ToyEngine

pytest.importorskip("transformers")

Call = Callable[..., Result]
Ask = Callable[..., Any]
TRAIN = (
    "--rank",
    "4",
    "--batch-size",
    "2",
    "--learning-rate",
    "0.02",
    "--warmup",
    "2",
    "--accumulate",
    "2",
    "--epochs",
    "3",
)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Twelve examples, which are three steps for each pass."""
    file = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(12)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


@pytest.fixture
def disturbed(serve_app: Any, tmp_path: Path) -> Callable[..., Any]:
    """Put a server on a port that calls a function before the n-th request of a path; what it
    returns is the answer.
    """

    @contextmanager
    def start(path: str, number: int, disturb: Callable[[], int | None]) -> Iterator[str]:
        state = State(ToyEngine, Settings(data_dir=tmp_path / "disturbed", gap_seconds=0.2))
        app, seen = create_app(state), 0

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            nonlocal seen
            if scope["type"] == "http" and scope["path"].endswith(path):
                seen += 1
                status = disturb() if seen == number else None
                if status is not None:
                    await send({"type": "http.response.start", "status": status, "headers": []})
                    await send({"type": "http.response.body", "body": b'{"detail": "disturbed"}'})
                    return
            await app(scope, receive, send)

        with serve_app(answer) as url:
            yield url
        state.close()

    return start


def lines_of(text: str, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, text.splitlines()) if line["type"] == kind]


def losses_of(text: str) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines_of(text, "step")}


def undisturbed(call: Call, data: str) -> dict[int, float]:
    result = call("-f", "json", "train", data, *TRAIN, "--name", "whole")
    assert result.exit_code == 0, result.output
    return losses_of(result.stdout)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    call: Call, disturbed: Any, data: str, capfd: pytest.CaptureFixture[str], number: int, code: int
) -> None:
    """A signal saves the run; with --resume each further step has the loss that it has in a run
    that nothing disturbed.
    """
    whole = undisturbed(call, data)
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), number)) as url:
        first = call("-f", "json", "train", data, *TRAIN, base_url=url)
        assert first.exit_code == code, first.output
        assert "run the same command with --resume" in first.stderr
        assert (
            "\nWaiting for the steps already sent, then saving. Ctrl-C again stops at once.\n"
            in capfd.readouterr().err
        )
        second = call("-f", "json", "train", data, "--resume", base_url=url)
        assert second.exit_code == 0, second.output
        before, after = losses_of(first.stdout), losses_of(second.stdout)
        assert 3 <= len(before) < len(whole) == 9
        assert not before.keys() & after.keys()
        assert before | after == whole
        (result,) = lines_of(second.stdout, "result")
        assert list(result["losses"]) == list(after.values())
        resumed, begun = json.loads(call("-f", "json", "run", "list", base_url=url).stdout)["runs"]
        assert resumed["user_metadata"] == {"resumed": begun["training_run_id"]}
        assert "(resumed)" in call("run", "list", base_url=url).stdout.splitlines()[1]
        assert "nothing to resume" in call("train", data, "--resume", base_url=url).stderr


def test_a_run_that_fails_is_saved_and_goes_on(call: Call, disturbed: Any, data: str) -> None:
    """A step that the server refuses ends the command with 1, after a save of the steps before;
    --resume takes it again.
    """
    whole = undisturbed(call, data)
    with disturbed("/forward_backward", 9, lambda: 422) as url:
        first = call("-f", "json", "train", data, *TRAIN, base_url=url)
        assert first.exit_code == 1
        assert json.loads(first.stderr.splitlines()[-1]) == {
            "error": "disturbed",
            "type": "UnprocessableEntityError",
        }
        assert [line["step"] for line in lines_of(first.stdout, "save")] == [4]
        second = call("-f", "json", "train", data, "--resume", base_url=url)
        assert losses_of(first.stdout) | losses_of(second.stdout) == whole
        assert min(losses_of(second.stdout)) == 5


def test_a_run_that_diverges_is_not_saved(
    call: Call, serve_app: Any, data: str, tmp_path: Path
) -> None:
    """Weights that are no numbers do not replace a checkpoint, and the advice is a lower learning
    rate, not --resume.
    """

    class Diverging(ToyEngine):
        steps = 0

        def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
            done = super().optim_step(adapter_id, params)
            self.steps += 1
            if self.steps == 3:
                tensors = self._adapter(adapter_id).weights.tensors
                tensors.update({name: part * float("nan") for name, part in tensors.items()})
            return done

    with running_server(Settings(data_dir=tmp_path / "diverging"), Diverging()) as url:
        result = call("train", data, *TRAIN, "--save-every", "2", base_url=url)
        assert result.exit_code == 1
        assert "--resume" not in result.stderr
        assert "/weights/final-000003" not in result.stderr
        advice = (
            r"The weights were not saved. Run the command again with a lower --learning-rate.\nTo "
            r"start .*-000002\.\n"
        )
        assert re.search(
            advice
            + r"Error: data\[\d+\]: the loss is not finite: the weights have probably diverged",
            result.stderr,
        )


def test_saves_on_the_way(call: Call, disturbed: Any, data: str) -> None:
    """Saves come as often as requested, and a run whose last save failed resumes from the latest
    one.
    """
    with disturbed("/save_weights", 5, lambda: 403) as url:  # 2, 4, 6, 8, and the one at the end
        first = call("-f", "json", "train", data, *TRAIN, "--save-every", "2", base_url=url)
        assert first.exit_code == 1
        saves = lines_of(first.stdout, "save")
        assert [line["step"] for line in saves] == [2, 4, 6, 8]
        assert saves[0]["checkpoint_path"].endswith("/weights/final-000002")
        second = call("-f", "json", "train", data, "--resume", base_url=url)
        assert list(losses_of(second.stdout)) == [9]


def test_a_resumed_run_is_the_same_run(call: Call, disturbed: Any, data: str) -> None:
    """Other options or other data than the run began with are refused by name; options left out are
    as they were.
    """
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), signal.SIGINT)) as url:
        assert call("train", data, *TRAIN, base_url=url).exit_code == 130
        refused = call("train", data, "--resume", "--batch-size", "3", base_url=url)
        assert refused.exit_code == 1
        assert refused.stderr.startswith(
            "Error: --batch-size was 2 when the run began, and is 3 now\n"
        )
        unset = call("train", data, "--resume", "--max-steps", "3", "--stop", "x", base_url=url)
        assert unset.stderr.startswith(
            "Error: --max-steps was not given when the run began, and is 3 now\n"
        )
        other = call("train", data, "--resume", "--name", "other", base_url=url).stderr
        assert other.startswith("Error: There is nothing to resume")
        assert "\nTo resume the run 'final', which is unfinished: --resume --name final\n" in other
        Path(data).write_text(Path(data).read_text() * 2)
        assert (
            "has changed since the run began"
            in call("train", data, "--resume", base_url=url).stderr
        )


def test_an_unfinished_run_is_not_lost_silently(call: Call, disturbed: Any, data: str) -> None:
    """A new run of the same name reports the unfinished one, which --resume continues unless the
    new run has saved.
    """
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), signal.SIGINT)) as url:
        first = call("-f", "json", "train", data, *TRAIN, base_url=url)
        (save,) = lines_of(first.stdout, "save")
        place = f"(step {save['step']} of 9, {save['checkpoint_path']})"
        new = call("train", data, *TRAIN, "--max-steps", "2", base_url=url)
        assert new.exit_code == 0, new.output
        assert (
            f"replaces an unfinished run of this name {place}.\nTo continue "
            "that run instead, use --resume.\n"
        ) in new.stderr
        resumed = call("train", data, "--resume", base_url=url)
        assert f"\nContinuing after step {save['step']} of 9\n" in resumed.stderr
        assert "An unfinished run" not in resumed.stderr
        assert "Creating a run" not in resumed.stderr
        assert "nothing to resume" in call("train", data, "--resume", base_url=url).stderr


def test_an_unfinished_run_of_another_folder(
    call: Call, prompts: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Unfinished runs of a local server are reported only for the same data folder."""
    counting = (
        "answers = []\ndef reward(answer, "
        "example):\n    answers.append(answer)\n    return len(answers)\n"
    )
    (tmp_path / "reward.py").write_text(
        counting.replace("return", "assert len(answers) < 60\n    return")
    )
    arguments = ("train", prompts, "--grpo", "reward.py", *GRPO, "--max-steps", "9")
    try:
        for folder, is_told in (("one", False), ("two", False), ("one", True)):
            monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path / folder))
            told = call(*arguments, base_url="local://toy").stderr
            assert "To continue, run the same command with --resume" in told
            assert ("replaces an unfinished run" in told) == is_told
    finally:
        close_in_process()


def test_an_unfinished_run_is_replaced_by_saves(call: Call, disturbed: Any, data: str) -> None:
    """Once a new run of the same name has saved on its way, there is one position, which goes with
    its end.
    """
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), signal.SIGINT)) as url:
        assert call("train", data, *TRAIN, base_url=url).exit_code == 130
        new = call("train", data, *TRAIN, "--max-steps", "2", "--save-every", "1", base_url=url)
        assert new.exit_code == 0, new.output
        assert "nothing to resume" in call("train", data, "--resume", base_url=url).stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"promt": "a"}', 'line 2: unknown key "promt"; did you mean "prompt"?\n'),
        (
            '{"prompt": "a"}',
            (
                '"prompt" needs "completion" beside it, or a reward function to score its answers: '
                "--grpo REWARD.py\n"
            ),
        ),
        (
            '{"prompt": "a", "completon": "b"}',
            'line 2: unknown key "completon"; did you mean "completion"?\n',
        ),
        (
            '{"other": "a"}',
            (
                'line 2: an example has "prompt" and "completion", or "messages", or "text", or '
                '"tokens"; got other\n'
            ),
        ),
        (
            '{"question": "a", "answer": "b"}',
            'got question, answer: rename "question" to "prompt"\n',
        ),
        ('{"prompt": "a", "output": "b"}', 'got prompt, output: rename "output" to "completion"\n'),
        (
            '{"input": "a", "output": "b", "content": ""}',
            ': rename "input" to "prompt" and rename "output" to "completion"\n',
        ),
        (
            '{"question": "a", "problem": "b", "output": "c"}',
            'rename "question" or "problem" to "prompt" and rename "output" to "completion"\n',
        ),
        ('{"conversation": []}', 'got conversation: rename "conversation" to "messages"\n'),
        (
            '{"messages": [{"from": "human", "value": "a"}]}',
            (
                'line 2: message 0 has no "role"; it has from, value: rename "from" to "role" '
                "(human to user, gpt to assistant), and "
            ),
        ),
        ('{"messages": "a"}', 'line 2: "messages" must be a list, got str\n'),
        (
            '{"tokens": [1, 2], "weigths": [0, 1]}',
            'line 2: unknown key "weigths"; did you mean "weights"?\n',
        ),
        (
            '{"tokens": [1, "2"]}',
            'line 2: "tokens" must be a list of integers from 0; at position 1 it has "2"\n',
        ),
        (
            '{"prompt": "a", "completion": "b"',
            "line 2: not JSON: Expecting ',' delimiter (column 34)\n",
        ),
        ('["a", "b"]', "line 2: a line is an object, {...}\n"),
        ('{"answer": "a"}', 'line 2: "answer" needs "prompt" beside it\n'),
        ("{a", "line 2: not JSON: Expecting property name enclosed in double quotes (column 2)"),
        ('{"tokens": [1], "weights": [1]}', "nothing to learn"),
        (
            '{"input_ids": [1, 2], "labels": [2, -100]}',
            '"labels" has 2 at position 0, where the token is 1; a label is the token',
        ),
        (
            '{"input_ids": [1, 2], "labels": [1]}',
            '"labels" and "attention_mask" must have 2 entries, one per token',
        ),
        (
            '{"prompt": "a", "chosen": "b", "rejected": "c"}',
            '"rejected" is for preference pairs: to learn from them, add --dpo',
        ),
        ('{"tokens": [1, 99999]}', "line 2: there is no token id 99999; ids run from 0 to 257"),
        (
            '{"tokens": [1, -1]}',
            'line 2: "tokens" must be a list of integers from 0; at position 1 it has -1',
        ),
        ('{"prompt": "a", "completion": ""}', "line 2: the completion is empty\n"),
        ('{"prompt": "a", "answer": ""}', "line 2: the answer is empty\n"),
        ('{"text": ""}', "line 2: the text is empty\n"),
    ],
)
def test_nothing_is_created_for_a_file_that_is_wrong(
    call: Call, ask: Ask, data: str, line: str, words: str
) -> None:
    """The data, and the file to evaluate on, are read before there is a run on the server."""
    before = ask("run", "list", "--limit", "1")["runs"]  # the newest
    wrong = Path(data).with_name("wrong.jsonl")
    wrong.write_text(f'{{"text": "abc"}}\n{line}\n')
    for arguments in ((str(wrong),), (data, "--eval-file", str(wrong))):
        result = call("train", *arguments)
        assert (result.exit_code, words in result.stderr) == (1, True), result.stderr
        assert (
            f"wrong.jsonl, {words[:6]}" in result.stderr or "wrong.jsonl, line 2" in result.stderr
        )
    assert ask("run", "list", "--limit", "1")["runs"] == before


WRITES = """
This writes JSON Lines: datasets.load_dataset("{}", data_files="{}", split="train").to_json("train.jsonl")"""
ARRAY = "data.json is a JSON array" + WRITES.format("json", "data.json")
TABLE = " is a table (CSV), not JSON Lines"
PARQUET = "data.parquet is a Parquet file" + WRITES.format("parquet", "data.parquet")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.json", b'[\n{"text": "a"}]', ARRAY),
        ("data.json", b'[{"text": "a"}]', ARRAY),
        ("data.json", b'{\n  "text": "a"\n}\n', "data.json has an object over several lines"),
        ("data.csv", b"anything\n", "data.csv" + TABLE + WRITES.format("csv", "data.csv")),
        (
            "data.txt",
            b"prompt,completion\na,b\n",
            "data.txt" + TABLE + WRITES.format("csv", "data.txt"),
        ),
        ("data.jsonl", b"\xff\xfet\x00", "data.jsonl is text in UTF-16: save it as UTF-8"),
        ("data.parquet", b"PAR1\x15\xff", PARQUET),
        ("data.parquet", b"PAR1\x15\n", PARQUET),
    ],
)
def test_files_that_are_no_json_lines(
    call: Call, data: str, tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    """A file in another format is named as such, with the expected format, wherever
    lines are read.
    """
    (tmp_path / name).write_bytes(content)
    (tmp_path / "reward.py").write_text(REWARD)
    expected = (
        'Expected JSON Lines: one object a line, such as {"prompt": "2 + 2 =", "completion": " 4"}'
    )
    for command in (
        ("train", name),
        ("train", data, "--eval-file", name),
        ("train", name, "--grpo", "reward.py"),
    ):
        result = call(*command)
        assert (result.exit_code, result.stderr.endswith(f"Error: {words}\n{expected}\n")) == (
            1,
            True,
        ), result.stderr


def test_a_byte_order_mark(ask: Ask, call: Call, tmp_path: Path) -> None:
    """The mark that some editors put before a text in UTF-8 is no part of the first line, nor is
    the end of a line in a text.
    """
    (tmp_path / "mark.jsonl").write_bytes(
        b"\xef\xbb\xbf" + '{"prompt": "a\u2028b", "completion": "c"}\r\n'.encode()
    )
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return len(answer)")
    arguments = ("train", "mark.jsonl", "--max-steps", "1")
    assert len(ask(*arguments)["losses"]) == 1
    assert len(ask(*arguments, "--eval-file", "mark.jsonl")["losses"]) == 1
    assert len(ask(*arguments, "--grpo", "reward.py", "--max-tokens", "2")["rewards"]) == 1
    assert (
        ask("sample", "--file", "mark.jsonl", "--out", "answers.jsonl", "--max-tokens", "2")["new"]
        == 1
    )


def test_patience_limits_the_retries_of_a_run(call: Call, disturbed: Any, data: str) -> None:
    """With --patience 0, a save that fails once ends the run, as any other command."""
    with disturbed("/save_weights", 1, lambda: 503) as url:
        failed = call("train", data, *TRAIN, "--save-every", "1", base_url=url)
    assert failed.exit_code == 1, failed.output
    assert "disturbed" in failed.stderr


def test_data_from_standard_input(call: Call, disturbed: Any, data: str) -> None:
    """A dash reads the data from standard input, errors say so, and the same input
    resumes the run.
    """
    rows = Path(data).read_text()
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), signal.SIGINT)) as url:
        first = call("-f", "json", "train", "-", *TRAIN, base_url=url, input=rows)
        assert first.exit_code == 130, first.output
        other = call("train", "-", "--resume", base_url=url, input=rows * 2)
        assert other.stderr.startswith("Error: standard input has changed since the run began\n")
        second = call("-f", "json", "train", "-", "--resume", base_url=url, input=rows)
        assert losses_of(first.stdout) | losses_of(second.stdout) == undisturbed(call, data)
    assert call("train", "-", input="{}\n{").stderr.startswith(
        "Error: standard input, line 1: an example has "
    )
    assert call("train", "-", input="").stderr == "Error: standard input has no examples\n"


def test_chats_without_a_template(call: Call, data: str, tmp_path: Path) -> None:
    """A run on conversations says once that the tokenizer has no chat template, and how they are
    written; other runs do not.
    """
    message = {"role": "assistant", "content": "b"}
    asked = {"role": "user", "content": "a"}
    (tmp_path / "chats.jsonl").write_text(
        json.dumps({"prompt": [asked], "completion": [message]}) + "\n"
    )
    note = (
        "The tokenizer has no chat template: messages become lines such as `User: Hi`, and `tinker "
        "chat` writes them so too.\n"
    )
    assert (
        call("train", "chats.jsonl", "--eval-file", "chats.jsonl", "--max-steps", "1").stderr.count(
            note
        )
        == 1
    )
    assert note not in call("train", data, "--max-steps", "1").stderr
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return len(answer)")
    grpo = ("--grpo", "reward.py", "--max-tokens", "2", "--max-steps", "1")
    assert call("train", "chats.jsonl", *grpo).stderr.count(note) == 1
    assert note not in call("train", data, *grpo).stderr


def test_a_loss_that_rises(call: Call, serve_app: Any, data: str, tmp_path: Path) -> None:
    """A run whose loss is higher at its end says so after the result; a run that learns does not,
    nor does one with rewards.
    """
    note = "The loss did not fall: try another --learning-rate (--lr).\n"
    assert call("train", data, "--epochs", "9", "--lr", "50").stderr.endswith(note)
    assert note not in call("train", data, *TRAIN).stderr
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return len(answer)")
    rewarded = call(
        "train", data, "--grpo", "reward.py", "--max-tokens", "2", "--epochs", "2", "--lr", "50"
    )
    assert (rewarded.exit_code, note in rewarded.stderr) == (0, False)
    state = State(
        lambda: ToyEngine(base_model="tinker/babble"), Settings(data_dir=tmp_path / "packaged")
    )
    with serve_app(create_app(state)) as url:
        result = call("train", data, "--epochs", "9", "--lr", "50", base_url=url)
        assert result.stderr.endswith(f"{note[:-1]} For this model, start with 1e-3 to 1e-2.\n")
    state.close()


def test_options_that_are_seldom_meant(call: Call, data: str) -> None:
    """A run says that its data ends before --max-steps, and that its held-out examples are those it
    learns; others do not.
    """
    notes = [
        "The data ends after 1 step, before --max-steps 5; for more, increase --epochs.\n",
        (
            "--eval-file is the training file: its loss does not tell how well the model does on "
            "other examples.\n"
        ),
    ]
    assert "".join(notes) in call("train", data, "--max-steps", "5", "--eval-file", data).stderr
    fine = call("train", data, "--max-steps", "1").stderr
    assert not [note for note in notes if note in fine]


@pytest.mark.parametrize("option", ["--grad-clip-norm", "--weight-decay"])
def test_options_of_the_optimizer(ask: Ask, data: str, option: str) -> None:
    """Each changes what is learned, and 0, the default, changes nothing."""
    few = ("train", data, "--batch-size", "2", "--learning-rate", "0.5", "--max-steps", "4")
    plain, none, some = (ask(*few, option, value)["losses"] for value in ("0", "0.0", "0.9"))
    assert plain == none == ask(*few)["losses"]
    assert some != plain
    assert some[0] == plain[0]


@pytest.fixture
def short(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server whose model takes 32 tokens."""
    with running_server(
        Settings(data_dir=tmp_path / "short"), ToyEngine(max_context_length=32)
    ) as url:
        yield url


LONG = json.dumps({"tokens": list(range(40))}) + "\n"


def test_an_example_that_the_model_cannot_take(
    call: Call, ask: Ask, short: str, data: str, tmp_path: Path
) -> None:
    """An example longer than the context length is an error before a run is created; one that fits
    is not.
    """
    (tmp_path / "long.jsonl").write_text(json.dumps({"tokens": list(range(33))}) + "\n" + LONG)
    for arguments in (
        ("long.jsonl",),
        (data, "--eval-file", "long.jsonl"),
        ("long.jsonl", "--estimate"),
    ):
        result = call("train", *arguments, base_url=short)
        assert result.exit_code == 1
        assert "Error: long.jsonl, line 2: 39 tokens; tinker/toy takes 32\n" in result.stderr
        assert result.stderr.endswith("Shorten it, or cut longer examples with --max-length 32.\n")
    assert ask("run", "list", base_url=short)["runs"] == []
    assert len(ask("train", "long.jsonl", "--max-length", "32", base_url=short)["losses"]) == 1


def test_a_prompt_that_the_model_cannot_take(
    call: Call, ask: Ask, short: str, tmp_path: Path
) -> None:
    """A prompt without room for an answer is an error before a run is created."""
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"prompt": "a b c d"}\n')
    result = call(
        "train", "prompts.jsonl", "--grpo", "reward.py", "--max-tokens", "30", base_url=short
    )
    assert result.exit_code == 1
    assert re.search(
        r"prompts.jsonl, line 2: \d tokens and an answer of 30; tinker/toy takes 32\n",
        result.stderr,
    )
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"prompt": "a" * 32}) + "\n")
    result = call("train", "prompts.jsonl", "--grpo", "reward.py", base_url=short)
    assert result.stderr.endswith(
        "line 1: the prompt has 32 tokens; tinker/toy takes 32, with the answer\nShorten it.\n"
    )
    assert ask("run", "list", base_url=short)["runs"] == []


def test_a_model_whose_context_is_not_known(
    ask: Ask, scripted: Callable[..., str], tmp_path: Path
) -> None:
    """Without a known context length, every example is sent."""
    url = scripted(
        "/get_server_capabilities", 200, {"supported_models": [{"model_name": "tinker/toy"}]}
    )
    (tmp_path / "long.jsonl").write_text(LONG)
    assert len(ask("train", "long.jsonl", base_url=url)["losses"]) == 1


def test_a_model_that_the_server_lacks(call: Call, data: str) -> None:
    """The refusal of the server is shown with the similar model, and no other
    tokenizer is loaded.
    """
    refusal = "base model 'tinker/tyo' is not offered; this server has 'tinker/toy'"
    result = call("train", data, "--model", "tinker/tyo")
    assert (result.exit_code, result.stderr) == (1, f"Error: {refusal}\n")
    result = call("sample", "hi", "--model", "tinker/tyo")
    assert (result.exit_code, result.stderr) == (1, f"Error: {refusal}\n")


def test_a_misspelled_model_that_the_server_only_refuses(
    call: Call, scripted: Callable[..., str], data: str
) -> None:
    """Where the server does not say which model was meant, the command finds it in the server's
    list.
    """
    url = scripted("/create_sampling_session", 400, {"detail": "no such model"}, method="POST")
    for command in (("train", data), ("sample", "hi")):
        result = call(*command, "--model", "tinker/tyo", base_url=url)
        assert (result.exit_code, result.stderr) == (
            1,
            "Error: no such model\nDid you mean tinker/toy?\n",
        )


def test_a_checkpoint_given_by_its_name(call: Call, data: str) -> None:
    """For an unknown model without a similar one, the advice is how to give the path of a
    checkpoint.
    """
    shown = "`tinker checkpoint list` shows the paths.\n"
    sampled = (
        "To use a checkpoint, give the name of its run or its path as the model: "
        f"tinker://RUN/sampler_weights/NAME; {shown}"
    )
    trained = (
        "To use a checkpoint, give the name of its run or its path: --from "
        f"tinker://RUN/weights/NAME; {shown}"
    )
    for command, told in (
        (("sample", "hi"), sampled),
        (("chat",), sampled),
        (("train", data), trained),
    ):
        result = call(*command, "--model", "pig-latin", input="")
        assert (result.exit_code, result.stderr.endswith(told)) == (1, True), result.stderr


def test_a_checkpoint_to_start_from_that_is_no_path(call: Call, data: str) -> None:
    """Text that is neither the path of a checkpoint nor the name of a run is an error, with the
    commands that list them.
    """
    first, advice = call("train", data, "--from", "pig-latin").stderr.splitlines()
    assert first == "Error: pig-latin is not a run, and not the path of a checkpoint"
    assert advice == (
        "`tinker run list` shows the runs, and `tinker checkpoint list` the "
        "paths of their checkpoints."
    )
    result = call("train", data, "--from", "run/pig-latin", base_url="http://127.0.0.1:1")
    form = (
        "It must be tinker://RUN/KIND/NAME, with KIND weights, sampler_weights or external_weights."
    )
    advice = "`tinker checkpoint list` shows the paths; with --run-id, those of one run."
    assert result.stderr == f"Error: Invalid checkpoint path: run/pig-latin\n{form}\n{advice}\n"


LISTS = ([], [{"model_name": "tinker/toy"}])


@pytest.mark.parametrize("listed", LISTS, ids=["none", "the model"])
def test_a_model_that_is_trained_and_not_sampled(
    ask: Ask, serve_app: Any, data: str, tmp_path: Path, listed: Any
) -> None:
    """A model that is trained but not sampled works if the server lists it or has no list."""
    state = State(ToyEngine, Settings(data_dir=tmp_path / "trains"))
    app, refused = create_app(state), []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/create_sampling_session"):
            refused.append(scope["path"])
            await JSONResponse({"detail": "not sampled here"}, 400)(scope, receive, send)
        elif scope["type"] == "http" and scope["path"].endswith("/get_server_capabilities"):
            await JSONResponse({"supported_models": listed})(scope, receive, send)
        else:
            await app(scope, receive, send)

    with serve_app(answer) as url:
        assert len(ask("train", data, "--model", "tinker/toy", base_url=url)["losses"]) == 1
    assert refused
    state.close()


def test_a_server_that_takes_every_model(ask: Ask, data: str, tmp_path: Path) -> None:
    """A model that the server does not list is trained if the server accepts it."""
    with running_server(
        Settings(data_dir=tmp_path / "any", any_base_model=True), ToyEngine()
    ) as url:
        assert (
            ask("train", data, "--model", "some/model", base_url=url)["base_model"] == "some/model"
        )


def test_the_tokenizer_does_not_warn_of_long_examples(server: str, tmp_path: Path) -> None:
    """The length warning of transformers is not shown."""
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"text": " ".join(map(str, range(600)))}) + "\n"
    )
    words = [sys.executable, "-m", "tinker.cli", "--base-url", server, "train", "long.jsonl"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "Token indices" not in done.stderr


def test_reports_of_a_run(call: Call, data: str, tmp_path: Path) -> None:
    """Each step is a line of the log with its loss, rate, tokens and speed; the evaluation comes
    when asked; curves are drawn.
    """
    arguments = (
        "--eval-file",
        data,
        "--eval-every",
        "4",
        "--log",
        "log.jsonl",
        "--plot",
        "loss.svg",
    )
    result = call("train", data, *TRAIN, *arguments)
    assert result.exit_code == 0, result.output
    log = (tmp_path / "log.jsonl").read_text()
    (start,) = lines_of(log, "start")
    assert (start["base_model"], start["examples"], start["steps"]) == ("tinker/toy", 12, 9)
    steps = lines_of(log, "step")
    assert [line["step"] for line in steps] == list(range(1, 10))
    assert [round(line["learning_rate"], 5) for line in steps[:4]] == [0.01, 0.02, 0.02, 0.01714]
    assert all(line["tokens"] > 0 and line["tokens_per_second"] > 0 for line in steps)
    evaluations = {line["step"]: line["loss"] for line in lines_of(log, "evaluation")}
    assert list(evaluations) == [0, 4, 8, 9]
    assert evaluations[9] < evaluations[0]
    assert re.search(r"^step 1/9 loss [\d.]+, [\d,]+ tokens/s$", result.stderr, re.MULTILINE)
    assert re.findall(r"^step (\d)/9 evaluation loss", result.stderr, re.MULTILINE) == [
        "0",
        "4",
        "8",
        "9",
    ]
    assert result.stderr.count("evaluation") == 4
    assert "* loss   o evaluation" in result.stdout
    drawn = ElementTree.parse(tmp_path / "loss.svg")
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["final", "loss", "evaluation"]
    call("train", data, *TRAIN, "--log", "log.jsonl", "--max-steps", "1")
    assert len(lines_of((tmp_path / "log.jsonl").read_text(), "step")) == 10  # appended


REWARD = """
def reward(answer, example):
    return sum(letter in example["wanted"] for letter in answer) / 6
"""


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        "".join(
            json.dumps({"prompt": f"{letter}: ", "wanted": "aeiou"}) + "\n" for letter in "bcdf"
        )
    )
    return str(file)


GRPO = (
    "--rank",
    "4",
    "--max-tokens",
    "6",
    "--batch-size",
    "4",
    "--group-size",
    "8",
    "--learning-rate",
    "0.05",
    "--epochs",
    "6",
)


def test_grpo_raises_the_reward(call: Call, disturbed: Any, prompts: str, tmp_path: Path) -> None:
    """The mean reward rises; each step reports it; and a run that was interrupted goes on as if
    nothing had been.

    The server's page draws the rewards by the steps that it counts itself: a resumed run goes on
    with those of the first.
    """
    (tmp_path / "reward.py").write_text(REWARD)
    result = call("-f", "json", "train", prompts, "--grpo", "reward.py", *GRPO)
    assert result.exit_code == 0, result.output
    rewards = {line["step"]: line["reward"] for line in lines_of(result.stdout, "step")}
    assert rewards[6] > rewards[1] + 0.1
    assert lines_of(result.stdout, "result")[0]["rewards"] == list(rewards.values())
    with disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), signal.SIGINT)) as url:
        first = call(
            "-f",
            "json",
            "train",
            prompts,
            "--grpo",
            "reward.py",
            *GRPO,
            "--save-every",
            "2",
            base_url=url,
        )
        assert (first.exit_code, [line["step"] for line in lines_of(first.stdout, "save")]) == (
            130,
            [2, 3],
        )
        second = call("-f", "json", "train", prompts, "--resume", base_url=url)
        both = lines_of(first.stdout, "step") + lines_of(second.stdout, "step")
        assert {line["step"]: line["reward"] for line in both} == rewards
        for one in (first, second):
            run = lines_of(one.stdout, "start")[0]["training_run_id"]
            curves = httpx.get(f"{url}/overview", params={"run": run}).json()["curves"]
            shown = [[line["step"], line["reward"]] for line in lines_of(one.stdout, "step")]
            assert curves["reward"] == shown
            assert {at for curve in curves.values() for at, _ in curve} == {
                step for step, _ in shown
            }


WRITTEN_FOR_TRL = (
    "To use a function written for TRL, see 'From TRL' in the documentation: it needs "
    "a few lines around it.\n"
)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "x = 1",
            (
                "reward.py has no function reward\nDefine: def reward(answer: str, example: dict) "
                f"-> float\n{WRITTEN_FOR_TRL}"
            ),
        ),
        (
            "def reward(completions, answer, **kwargs):\n    return [0.0]",
            (
                "reward.py: reward takes lists, as in TRL; here it takes one answer and its "
                f"line\n{WRITTEN_FOR_TRL}"
            ),
        ),
        ("1 / 0", "reward.py:1: ZeroDivisionError: division by zero\n"),
        ("x = 1\ndef f(:", "reward.py:2: SyntaxError: invalid syntax\n"),
        (
            "\ndef reward(answer):\n    return 1.0",
            "reward.py:2: reward(answer) cannot be called as reward(answer, example)\n",
        ),
        (
            "def reward(a, b, *, c):\n    return 1",
            "reward.py:1: reward(a, b, *, c) cannot be called as reward(answer, example)\n",
        ),
    ],
)
def test_a_reward_is_checked_before_anything_is_created(
    call: Call, tmp_path: Path, data: str, code: str, words: str
) -> None:
    """A file that does not run, or whose function takes other arguments, is named with the line
    before any request.
    """
    (tmp_path / "reward.py").write_text(code)
    result = call("train", data, "--grpo", "reward.py", *GRPO, base_url="http://127.0.0.1:1")
    assert (result.exit_code, result.stderr) == (1, f"Error: {words}")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def reward(answer, example):\n    return example['no']", "reward.py:2: KeyError: 'no'"),
        (
            "def reward(answer, example):\n    raise ValueError('a\\nb')",
            "reward.py:2: ValueError: a b",
        ),
        (
            "def reward(answer, example):\n    return float('nan')",
            "reward.py:1: reward must return a finite number, got nan",
        ),
        (
            "\ndef reward(answer, example):\n    return 'no'",
            "reward.py:2: reward must return a number, got 'no' of type str",
        ),
        (
            "def reward(answer, example):\n    pass",
            "reward.py:1: reward must return a number, got None",
        ),
    ],
)
def test_rewards_that_fail(call: Call, prompts: str, tmp_path: Path, code: str, words: str) -> None:
    """A reward that raises or does not return a number ends the run with the line of the file."""
    (tmp_path / "reward.py").write_text(code)
    result = call("train", prompts, "--grpo", "reward.py", *GRPO)
    assert (result.exit_code, f"Error: {words}\nThe answer was " in result.stderr) == (1, True), (
        result.stderr
    )
    assert "Traceback" not in result.output


def test_a_run_without_different_rewards_learns_nothing(
    call: Call, prompts: str, tmp_path: Path
) -> None:
    """Where all answers to each prompt have the same reward, the run says at its end that nothing
    was learned.
    """
    (tmp_path / "reward.py").write_text("def reward(answer, example):\n    return 1.0")
    result = call("train", prompts, "--grpo", "reward.py", *GRPO, "--max-steps", "1")
    assert result.exit_code == 0
    assert (
        "Nothing was learned: in every step, all answers to a prompt had the same reward.\n"
        in result.stderr
    )


def test_rewards_that_are_numbers_of_other_types(ask: Ask, prompts: str, tmp_path: Path) -> None:
    """A reward may be any number, such as a bool or one of numpy."""
    (tmp_path / "reward.py").write_text(
        "import numpy\ndef reward(a, b):\n    return numpy.float32(1) if 'a' in a else True"
    )
    assert ask("train", prompts, "--grpo", "reward.py", *GRPO, "--max-steps", "1")["rewards"] == [
        1.0
    ]


def test_a_reward_that_imports_a_module_of_its_folder(
    ask: Ask, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the reward may import modules that are beside it, wherever the command runs."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "rewards"
    folder.mkdir()
    (folder / "scored_here.py").write_text("SCORE = 2.0")
    (folder / "reward.py").write_text(
        "import scored_here\ndef reward(answer, example):\n    return scored_here.SCORE"
    )
    assert ask("train", prompts, "--grpo", "rewards/reward.py", *GRPO, "--max-steps", "1")[
        "rewards"
    ] == [2.0]


def test_prompts_of_token_ids(ask: Ask, tmp_path: Path) -> None:
    """GRPO takes a prompt as token ids, as `tinker sample --file` does."""
    (tmp_path / "reward.py").write_text(
        "def reward(answer, example):\n    return len(example['prompt'])"
    )
    (tmp_path / "ids.jsonl").write_text('{"prompt": [1, 2, 3]}\n')
    assert ask("train", "ids.jsonl", "--grpo", "reward.py", *GRPO, "--max-steps", "1")[
        "rewards"
    ] == [3.0]


def test_invalid_prompts(call: Call, tmp_path: Path) -> None:
    """A line without a prompt and a file without lines are errors."""
    (tmp_path / "reward.py").write_text(REWARD)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n{"wanted": "b"}\n')
    assert (
        "prompts.jsonl, line 2: a line is an object with "
        in call("train", "prompts.jsonl", "--grpo", "reward.py").stderr
    )
    (tmp_path / "prompts.jsonl").write_text("\n")
    assert "has no prompts" in call("train", "prompts.jsonl", "--grpo", "reward.py").stderr


def test_contradictory_options(call: Call, data: str, tmp_path: Path) -> None:
    """Contradictory options exit with 2, and a log in a missing folder is an error before any
    request.
    """
    (tmp_path / "reward.py").write_text(REWARD)
    assert call("train", data, "--eval-every", "2").exit_code == 2
    assert call("train", data, "--grpo", "reward.py", "--eval-file", data).exit_code == 2
    for option, value in (
        ("--stop", "x"),
        ("--group-size", "8"),
        ("--max-tokens", "9"),
        ("--temperature", "1"),
    ):
        useless = call("train", data, option, value)
        assert (useless.exit_code, useless.stderr.endswith(f"Error: {option} needs --grpo.\n")) == (
            2,
            True,
        ), useless.stderr
    assert (
        "There is no folder"
        in call("train", data, "--log", "nowhere/log.jsonl", base_url="http://127.0.0.1:1").stderr
    )


@pytest.mark.parametrize("command", [("train", "sums.jsonl"), ("run", "compare", "log.jsonl")])
def test_a_chart_is_an_svg_file(
    call: Call, data: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Another kind of picture is refused before anything happens."""
    result = call(*command, "--plot", "x.png", base_url="http://127.0.0.1:1")
    assert (
        result.exit_code,
        "Error: the chart is an SVG file: name it x.svg\n" in result.stderr,
    ) == (2, True), result.stderr
    assert not (tmp_path / "x.png").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a/b", "a checkpoint name must be a string without '/', got 'a/b'"),
        ("", "a checkpoint name must be a string without '/', got ''"),
        ("..", "a checkpoint cannot be named '..'"),
        (" ", "a checkpoint name must not be blank or have control characters, got ' '"),
        ("a\nb", "a checkpoint name must not be blank or have control characters, got 'a\\nb'"),
        ("x" * 300, "a checkpoint name has at most 248 bytes, got 300"),
    ],
)
def test_a_name_that_no_checkpoint_can_have(
    call: Call, data: str, tmp_path: Path, name: str, words: str
) -> None:
    """A name under which the server would not save ends with 2 before the server is asked, in every
    command that takes one.
    """
    (tmp_path / "reward.py").write_text(REWARD)
    commands = (
        ("train", data),
        ("train", data, "--grpo", "reward.py"),
        ("train", data, "--resume"),
        ("checkpoint", "create", "--model", "m"),
    )
    for command in commands:
        result = call(*command, "--name", name, base_url="http://127.0.0.1:1")
        told = result.stderr.splitlines()[-1]
        assert (
            result.exit_code,
            told.startswith(f"Error: Invalid value for '--name': {words}"),
        ) == (2, True), result.stderr


def test_the_rank_of_a_checkpoint(call: Any, tmp_path: Path) -> None:
    """A run that starts from a checkpoint keeps the rank of its adapter, so a rank of its own is
    refused.
    """
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    result = call("train", str(data), "--from", "tinker://run/weights/a", "--rank", "3")
    assert (result.exit_code, "--rank cannot be used with --from" in result.stderr) == (2, True)


def test_only_the_last_checkpoints_are_kept(call: Call, ask: Ask, data: str) -> None:
    """Of the checkpoints that a run saves on its way, --keep-last leaves so many; the final ones
    stay.
    """
    result = ask(
        "train",
        data,
        "--max-steps",
        "4",
        "--batch-size",
        "1",
        "--save-every",
        "1",
        "--keep-last",
        "2",
        "--name",
        "few",
    )
    run_id = result["training_run_id"]
    kept = {
        one["checkpoint_id"] for one in ask("checkpoint", "list", "--run-id", run_id)["checkpoints"]
    }
    assert kept == {
        "weights/few-000002",
        "weights/few-000003",
        "weights/few",
        "sampler_weights/few",
    }


def test_options_come_from_a_file(call: Call, ask: Ask, data: str, tmp_path: Path) -> None:
    """A TOML file sets the data and the options, under their names; the command line comes before
    it.
    """
    file = tmp_path / "run.toml"
    file.write_text(
        f'data = "{data}"\nlr = 0.02\nbatch-size = 2\nmax_steps = 3\nname = '
        '"of-a-file"\ntrain_unembed = false\n'
    )
    given = ("--lr", "0.02", "--batch-size", "2", "--no-train-unembed", "--name", "of-a-file")
    typed = ask("train", data, *given, "--max-steps", "2")
    of_file = ask("train", "--config", str(file), "--max-steps", "2")
    assert of_file["losses"] == typed["losses"]
    assert of_file["checkpoint_path"].endswith("/of-a-file")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("epoch = 2", "sets epoch, which is not an option. Did you mean epochs?"),
        (
            "[training]\nx = 2",
            (
                "sets training, which is not an option. A key is the name of an "
                "option without its dashes."
            ),
        ),
        ("epochs: 2", "is not TOML: "),
        ("epochs = 0", "Invalid value for '--epochs': must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_file_of_options(
    call: Call, data: str, tmp_path: Path, text: str, problem: str
) -> None:
    """A file with another form, an unknown name or a wrong value is a wrong call, before any
    request.
    """
    (tmp_path / "run.toml").write_text(text)
    result = call("train", data, "--config", "run.toml", base_url="http://127.0.0.1:1")
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_a_pipe_gets_only_steps(call: Call, data: str) -> None:
    """The title of the result's table, which only a terminal shows, is on neither stream."""
    result = call("train", data, "--max-steps", "1")
    assert result.stderr.splitlines()[-1].startswith("step 1/1 loss ")
    assert result.stdout.splitlines()[0].split() == ["Property", "Value"]


def test_the_name_of_a_run_is_listed(call: Call, ask: Ask, data: str) -> None:
    """A name given to a run is stored with it, and shown in the list once a run has one."""
    assert call("train", data, "--max-steps", "1", "--name", "plus-one").exit_code == 0
    assert ask("run", "list", "--limit", "1")["runs"][0]["user_metadata"] == {"name": "plus-one"}
    listed = call("run", "list", "--limit", "1").stdout.splitlines()
    columns = ["Run ID", "Name", "Base Model", "LoRA", "Steps", "Loss", "Last Update", "Status"]
    assert re.split(r"\s{2,}", listed[0]) == columns
    assert re.split(r"\s{2,}", listed[1])[1] == "plus-one"
    assert call("train", data, "--max-steps", "1").exit_code == 0
    assert "Name" not in call("run", "list", "--limit", "1").stdout
    assert call("run", "list", "--limit", "2", "-c", "name").stdout.split() == ["Name", "plus-one"]


def test_the_short_name_of_the_learning_rate(call: Call, data: str, tmp_path: Path) -> None:
    """--lr is --learning-rate."""
    assert (
        call("train", data, "--lr", "0.5", "--schedule", "constant", "--log", "log.jsonl").exit_code
        == 0
    )
    assert lines_of((tmp_path / "log.jsonl").read_text(), "step")[0]["learning_rate"] == 0.5


def test_the_command_line_says_that_a_model_loads(call: Call, tmp_path: Path) -> None:
    """The first line of a command that loads a model in its process says so; into JSON nothing is
    said.
    """
    pytest.importorskip("torch")
    result = call("model", "list", base_url="local://?engine=torch")
    assert result.stderr.startswith("Loading torch and tinker/babble ...\n"), result.stderr
    close_in_process()
    assert call("-f", "json", "model", "list", base_url="local://?engine=torch").stderr == ""
    close_in_process()
