"""``tinker train``: its checks, interruption and resumption, reports, and the user's rewards."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from cli.conftest import Ask, Call, interrupt, lines_of, write

from tinker.local import close_in_process
from tinker.local.engines.toy import ToyEngine

pytest.importorskip("transformers")

TRAIN = "--rank 4 --batch-size 2 --learning-rate 0.02 --warmup 2 --accumulate 2 --epochs 3"
GRPO = "--grpo reward.py --rank 4 --max-tokens 6 --batch-size 4 --group-size 8 --lr 0.05 --epochs 6"
REWARD = """
def reward(answer, example):
    return sum(letter in example["wanted"] for letter in answer) / 6
"""


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Twelve examples, which are three steps for each pass."""
    rows = [{"prompt": f"{number} + 1 =", "completion": f" {number + 1}"} for number in range(12)]
    return write(tmp_path / "sums.jsonl", *rows)


@pytest.fixture
def reward(tmp_path: Path) -> Callable[[str], object]:
    """Write the file of the reward, which at first counts the letters that are wanted."""
    (tmp_path / "reward.py").write_text(REWARD)
    return (tmp_path / "reward.py").write_text


@pytest.fixture
def prompts(tmp_path: Path, reward: Any) -> str:
    """Four prompts, and the reward of their answers."""
    rows = [{"prompt": f"{letter}: ", "wanted": "aeiou"} for letter in "bcdf"]
    return write(tmp_path / "prompts.jsonl", *rows)


def losses_of(text: str) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines_of(text, "step")}


def undisturbed(call: Call, data: str) -> dict[int, float]:
    return losses_of(call(f"-f json train {data} {TRAIN} --name whole", code=0).stdout)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(
    call: Call,
    disturbed: Any,
    data: str,
    capfd: pytest.CaptureFixture[str],
    number: int,
    code: int,
) -> None:
    """A signal saves the run, and after --resume each step has the loss of an undisturbed run."""
    whole = undisturbed(call, data)
    url = disturbed("/optim_step", 3, lambda: os.kill(os.getpid(), number))
    first = call(f"-f json train {data} {TRAIN}", base_url=url, code=code)
    assert "run the same command with --resume" in first.stderr
    said = "\nWaiting for the steps already sent, then saving. Ctrl-C again stops at once.\n"
    assert said in capfd.readouterr().err
    second = call(f"-f json train {data} --resume", base_url=url, code=0)
    before, after = losses_of(first.stdout), losses_of(second.stdout)
    assert 3 <= len(before) < len(whole) == 9
    assert not before.keys() & after.keys()
    assert before | after == whole
    (result,) = lines_of(second.stdout, "result")
    assert list(result["losses"]) == list(after.values())
    resumed, begun = json.loads(call("-f json run list", base_url=url).stdout)["runs"]
    assert resumed["user_metadata"] == {"resumed": begun["training_run_id"]}
    assert "(resumed)" in call("run list", base_url=url).stdout.splitlines()[1]
    assert "nothing to resume" in call(f"train {data} --resume", base_url=url).stderr


def test_a_run_that_fails_is_saved_and_goes_on(call: Call, disturbed: Any, data: str) -> None:
    """A refused step ends the command with 1, after a save of the steps before, and is resumed."""
    whole = undisturbed(call, data)
    url = disturbed("/forward_backward", 9, lambda: 422)
    first = call(f"-f json train {data} {TRAIN}", base_url=url, code=1)
    failure = {"error": "disturbed", "type": "UnprocessableEntityError"}
    assert json.loads(first.stderr.splitlines()[-1]) == failure
    assert [line["step"] for line in lines_of(first.stdout, "save")] == [4]
    second = call(f"-f json train {data} --resume", base_url=url)
    assert losses_of(first.stdout) | losses_of(second.stdout) == whole
    assert min(losses_of(second.stdout)) == 5


@pytest.mark.parametrize("option", ["", "--dpo"])
def test_a_run_that_diverges_is_not_saved(
    call: Call, serve: Callable[..., str], data: str, tmp_path: Path, option: str
) -> None:
    """Weights that are no numbers replace no checkpoint; a lower learning rate is advised."""

    class Diverging(ToyEngine):
        steps = 0

        def optim_step(self, adapter_id: str, params: Any) -> dict[str, float]:
            done = super().optim_step(adapter_id, params)
            self.steps += 1
            if self.steps == 3:
                tensors = self._adapter(adapter_id).weights.tensors
                tensors.update({name: part * float("nan") for name, part in tensors.items()})
            return done

    pairs = [{"prompt": f"{at}? ", "chosen": "yes", "rejected": "not at all"} for at in range(12)]
    file = write(tmp_path / "pairs.jsonl", *pairs) if option else data
    url = serve(Diverging())
    result = call(f"train {file} {TRAIN} --save-every 2 {option}", base_url=url, code=1)
    assert "--resume" not in result.stderr
    assert "/weights/final-000003" not in result.stderr
    advice = (
        r"The weights were not saved. Run the command again with a lower --learning-rate.\nTo "
        r"start .*-000002\.\nError: "
    )
    assert re.search(advice, result.stderr), result.stderr
    finite = r"data\[\d+\]: the loss is not finite: the weights have probably diverged"
    assert option or re.search(advice + finite, result.stderr)


def test_saves_on_the_way(call: Call, disturbed: Any, data: str) -> None:
    """A run saves as often as asked, and resumes from the latest save where the last one failed."""
    # saves are after 2, 4, 6, 8, and at the end
    url = disturbed("/save_weights", 5, lambda: 403)
    first = call(f"-f json train {data} {TRAIN} --save-every 2", base_url=url, code=1)
    saves = lines_of(first.stdout, "save")
    assert [line["step"] for line in saves] == [2, 4, 6, 8]
    assert saves[0]["checkpoint_path"].endswith("/weights/final-000002")
    second = call(f"-f json train {data} --resume", base_url=url)
    assert list(losses_of(second.stdout)) == [9]


def test_a_resumed_run_is_the_same_run(call: Call, disturbed: Any, data: str) -> None:
    """Other options or data than the run began with are refused by name."""
    url = disturbed("/optim_step", 3, interrupt)
    assert call(f"train {data} {TRAIN}", base_url=url).exit_code == 130

    def resume(options: str = "") -> str:
        return call(f"train {data} --resume {options}", base_url=url, code=1).stderr

    said = resume("--batch-size 3")
    assert said.startswith("Error: --batch-size was 2 when the run began, and is 3 now\n")
    unset = "Error: --max-steps was not given when the run began, and is 3 now\n"
    assert resume("--max-steps 3 --stop x").startswith(unset)
    other = resume("--name other")
    assert other.startswith("Error: There is nothing to resume")
    assert "\nTo resume the run 'final', which is unfinished: --resume --name final\n" in other
    Path(data).write_text(Path(data).read_text() * 2)
    assert "has changed since the run began" in resume()


def test_an_unfinished_run_is_not_lost_silently(call: Call, disturbed: Any, data: str) -> None:
    """A new run of a name reports the unfinished one, which --resume continues until it saves."""
    url = disturbed("/optim_step", 3, interrupt)
    (save,) = lines_of(call(f"-f json train {data} {TRAIN}", base_url=url).stdout, "save")
    place = f"(step {save['step']} of 9, {save['checkpoint_path']})"
    new = call(f"train {data} {TRAIN} --max-steps 2", base_url=url, code=0)
    assert (
        f"replaces an unfinished run of this name {place}.\nTo continue that run instead, use "
        "--resume.\n"
    ) in new.stderr
    resumed = call(f"train {data} --resume", base_url=url)
    assert f"\nContinuing after step {save['step']} of 9\n" in resumed.stderr
    assert "An unfinished run" not in resumed.stderr
    assert "Creating a run" not in resumed.stderr
    assert "nothing to resume" in call(f"train {data} --resume", base_url=url).stderr
    url = disturbed("/optim_step", 3, interrupt)
    assert call(f"train {data} {TRAIN}", base_url=url).exit_code == 130
    call(f"train {data} {TRAIN} --max-steps 2 --save-every 1", base_url=url, code=0)
    assert "nothing to resume" in call(f"train {data} --resume", base_url=url).stderr


def test_an_unfinished_run_of_another_folder(
    call: Call, prompts: str, reward: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfinished runs of a local server are reported only for the same data folder."""
    reward(
        "answers = []\ndef reward(answer, example):\n    answers.append(answer)\n"
        "    assert len(answers) < 60\n    return len(answers)\n"
    )
    try:
        for folder, is_told in (("one", False), ("two", False), ("one", True)):
            monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path / folder))
            told = call(f"train {prompts} {GRPO} --max-steps 9", base_url="local://toy").stderr
            assert "To continue, run the same command with --resume" in told
            assert ("replaces an unfinished run" in told) == is_told
    finally:
        close_in_process()


ASKED = {"role": "user", "content": "a"}
ANSWERED = [ASKED, {"role": "assistant", "content": "b"}]
HUMAN = {"from": "human", "value": "a"}
WRONG_LINES: list[tuple[object, str]] = [
    ({"promt": "a"}, 'unknown key "promt"; did you mean "prompt"?\n'),
    (
        {"prompt": "a"},
        '"prompt" needs "completion" beside it, or a reward function to score its answers: '
        "--grpo REWARD.py\n",
    ),
    ({"prompt": "a", "completion": None}, '"prompt" needs "completion" beside it'),
    ({"prompt": "a", "completon": "b"}, 'unknown key "completon"; did you mean "completion"?\n'),
    ({"other": "a"}, 'an example has "prompt" and "completion", or "messages", or "text", or "tokens"; got other\n'),
    ({}, "got nothing"),
    ({"question": "a", "answer": "b"}, 'got question, answer: rename "question" to "prompt"\n'),
    ({"prompt": "a", "output": "b"}, 'got prompt, output: rename "output" to "completion"\n'),
    ({"input": "a", "output": "b", "content": ""}, ': rename "input" to "prompt" and rename "output" to "completion"\n'),
    ({"question": "a", "problem": "b", "output": "c"}, 'rename "question" or "problem" to "prompt" and rename "output"'),
    ({"conversation": []}, 'got conversation: rename "conversation" to "messages"\n'),
    (
        {"messages": [HUMAN]},
        'message 0 has no "role"; it has from, value: rename "from" to "role" (human to user, gpt '
        "to assistant), and ",
    ),
    ({"messages": [{"content": "a"}]}, "role"),
    ({"messages": "a"}, '"messages" must be a list, got str\n'),
    ({"messages": [{**ANSWERED[1], "content": None}]}, 'message 0: "content" must be text'),
    ({"messages": [{**ASKED, "content": [{"type": "image"}]}]}, "parts that are not text"),
    ({"messages": [{**ASKED, "content": ["a"]}]}, "parts that are not text"),
    ({"messages": ANSWERED, "text": "b"}, "keep one of them"),
    ({"messages": [ASKED]}, "nothing to learn"),
    ({"messages": [ASKED, {**ANSWERED[1], "weight": "x"}]}, "message 1 has the weight 'x'; it is a finite number"),
    ({"tokens": [1, 2], "weigths": [0, 1]}, 'unknown key "weigths"; did you mean "weights"?\n'),
    ({"tokens": [1, "2"]}, '"tokens" must be a list of integers from 0; at position 1 it has "2"\n'),
    ({"tokens": [1, -1]}, '"tokens" must be a list of integers from 0; at position 1 it has -1'),
    ({"tokens": [1.5]}, "integers"),
    ({"tokens": [1, 99999]}, "there is no token id 99999; ids run from 0 to 257"),
    ({"tokens": [1], "weights": [1]}, "nothing to learn"),
    ({"tokens": [1, 2], "weights": [1, 0]}, "nothing to learn"),
    ({"tokens": [1, 2], "weights": [1]}, "2 tokens and 1 weight"),
    ({"input_ids": [1, 2], "labels": [2, -100]}, '"labels" has 2 at position 0, where the token is 1; a label is the token'),
    ({"input_ids": [1, 2], "labels": [1]}, '"labels" and "attention_mask" must have 2 entries, one per token'),
    ({"input_ids": [5, 6], "completion_mask": [1]}, "must have 2 entries"),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, '"rejected" is for preference pairs: to learn from them, add --dpo'),
    ({"prompt": "a", "completion": "b", "label": False}, '"label" is for preferences'),
    ({"prompt": "a", "completion": "b", "system": "c"}, '"system" is not read: make it the first of "messages"'),
    ({"prompt": 1, "completion": "a"}, "must both be strings, or both lists of messages, got int and str"),
    ({"prompt": [ASKED], "completion": "b"}, "must both be strings, or both lists of messages"),
    ({"prompt": [ASKED], "completion": []}, "the completion is empty"),
    ({"prompt": [ASKED], "completion": [ASKED]}, "nothing to learn; the roles are user"),
    ({"prompt": "a", "completion": ""}, "the completion is empty\n"),
    ({"prompt": "a", "answer": ""}, "the answer is empty\n"),
    ({"answer": "a"}, '"answer" needs "prompt" beside it\n'),
    ({"text": ""}, "the text is empty\n"),
    ({"text": 1}, "must be a string"),
    (["a", "b"], "a line is an object, {...}\n"),
    (1, "a line is an object"),
    ({"conversations": []}, '"messages" is empty'),
    ({"conversations": "a"}, '"conversations" must be a list of messages, got str'),
    ({"conversations": ["a"]}, "message 0"),
    ({"conversations": [HUMAN, {"from": "other", "value": "b"}]}, "message 1 is from 'other'; read are"),
    ({"conversations": [HUMAN, {"from": "gpt", "value": 1}]}, 'message 1: "content" must be text'),
    ({"conversations": [HUMAN, {"from": "gpt"}]}, 'message 1: "content" must be text'),
    ({"instruction": 1, "output": "b"}, '"instruction", "input" and "output" must be text'),
    ({"instruction": "a", "input": ["c"], "output": "b"}, '"instruction", "input" and "output" must be text'),
    ({"instruction": "a", "output": ""}, '"output" is empty'),
    ({"instruction": "a", "output": "b", "history": [["c", "d"]]}, '"history" is not read'),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG_LINES, ids=lambda value: str(value)[:40])
def test_nothing_is_created_for_a_line_that_is_wrong(
    refuse: Any, ask: Ask, server: str, data: str, tmp_path: Path, line: object, words: str
) -> None:
    """The data, and the file to evaluate on, are read before there is a run on the server."""
    before = ask("run list --limit 1")["runs"]  # the newest
    write(tmp_path / "wrong.jsonl", {"text": "abc"}, line)
    for files in ("wrong.jsonl", f"{data} --eval-file wrong.jsonl"):
        assert "wrong.jsonl, line 2: " in refuse(1, words, f"train {files}", base_url=server)
    assert ask("run list --limit 1")["runs"] == before


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
        ("data.parquet", b"PAR1\x15\xff", PARQUET),
        ("data.parquet", b"PAR1\x15\n", PARQUET),
    ],
)
def test_files_that_are_no_json_lines(
    refuse: Any,
    reward: Any,
    server: str,
    data: str,
    tmp_path: Path,
    name: str,
    content: bytes,
    words: str,
) -> None:
    """A file in another format is named as such, with the expected one, wherever lines are read."""
    (tmp_path / name).write_bytes(content)
    expected = (
        'Expected JSON Lines: one object a line, such as {"prompt": "2 + 2 =", "completion": " 4"}'
    )
    for files in (name, f"{data} --eval-file {name}"):
        assert refuse(1, words, f"train {files}") == f"Error: {words}\n{expected}\n"
    grpo = refuse(1, words, f"train {name} --grpo reward.py", base_url=server)
    assert grpo.endswith(f"Error: {words}\n{expected}\n")


def test_patience_limits_the_retries_of_a_run(refuse: Any, disturbed: Any, data: str) -> None:
    """With --patience 0, a save that fails once ends the run, as any other command."""
    url = disturbed("/save_weights", 1, lambda: 503)
    refuse(1, "disturbed", f"train {data} {TRAIN} --save-every 1", base_url=url)


def test_data_from_standard_input(call: Call, disturbed: Any, data: str) -> None:
    """A dash reads standard input, which errors name; the same input resumes the run."""
    rows = Path(data).read_text()
    url = disturbed("/optim_step", 3, interrupt)
    first = call(f"-f json train - {TRAIN}", base_url=url, input=rows, code=130)
    other = call("train - --resume", base_url=url, input=rows * 2)
    assert other.stderr.startswith("Error: standard input has changed since the run began\n")
    second = call("-f json train - --resume", base_url=url, input=rows)
    assert losses_of(first.stdout) | losses_of(second.stdout) == undisturbed(call, data)
    wrong = call("train -", input="{}\n{").stderr
    assert wrong.startswith("Error: standard input, line 1: an example has ")
    assert call("train -", input="").stderr == "Error: standard input has no examples\n"


def test_chats_without_a_template(call: Call, reward: Any, data: str, tmp_path: Path) -> None:
    """A run on conversations says once how they are written without a chat template."""
    chat = {"prompt": ANSWERED[:1], "completion": ANSWERED[1:]}
    write(tmp_path / "chats.jsonl", chat)
    note = (
        "The tokenizer has no chat template: messages become lines such as `User: Hi`, and "
        "`tinker chat` writes them so too.\n"
    )
    told = call("train chats.jsonl --eval-file chats.jsonl --max-steps 1").stderr
    assert told.count(note) == 1
    assert note not in call(f"train {data} --max-steps 1").stderr
    reward("def reward(answer, example):\n    return len(answer)")
    grpo = "--grpo reward.py --max-tokens 2 --max-steps 1"
    assert call(f"train chats.jsonl {grpo}").stderr.count(note) == 1
    assert note not in call(f"train {data} {grpo}").stderr


def test_a_loss_that_rises(
    call: Call, serve: Callable[..., str], reward: Any, data: str, tmp_path: Path
) -> None:
    """A run whose loss is higher at its end says so; one that learns or has rewards does not."""
    note = "The loss did not fall: try another --learning-rate (--lr).\n"
    rising = f"train {data} --epochs 9 --lr 50"
    assert call(rising).stderr.endswith(note)
    assert note not in call(f"train {data} {TRAIN}").stderr
    reward("def reward(answer, example):\n    return len(answer)")
    grpo = "--grpo reward.py --max-tokens 2 --epochs 2 --lr 50"
    assert note not in call(f"train {data} {grpo}", code=0).stderr
    packaged = serve(ToyEngine(base_model="tinker/babble"))
    said = f"{note[:-1]} For this model, start with 1e-3 to 1e-2.\n"
    assert call(rising, base_url=packaged).stderr.endswith(said)


def test_options_that_are_seldom_meant(call: Call, data: str) -> None:
    """A run says that its data ends early, and that it is evaluated on what it learns."""
    notes = [
        "The data ends after 1 step, before --max-steps 5; for more, increase --epochs.\n",
        "--eval-file is the training file: its loss does not tell how well the model does on other "
        "examples.\n",
    ]
    told = call(f"train {data} --max-steps 5 --eval-file {data}").stderr
    assert "".join(notes) in told
    fine = call(f"train {data} --max-steps 1").stderr
    assert not [note for note in notes if note in fine]


@pytest.mark.parametrize("option", ["--grad-clip-norm", "--weight-decay"])
def test_options_of_the_optimizer(ask: Ask, data: str, option: str) -> None:
    """Each changes what is learned, and 0, the default, changes nothing."""
    few = f"train {data} --batch-size 2 --learning-rate 0.5 --max-steps 4"
    plain, none, some = (ask(few, option, value)["losses"] for value in ("0", "0.0", "0.9"))
    assert plain == none == ask(few)["losses"]
    assert some != plain
    assert some[0] == plain[0]


@pytest.fixture
def short(serve: Callable[..., str]) -> str:
    """Return the address of a server whose model takes 32 tokens."""
    return serve(ToyEngine(max_context_length=32))


def test_an_example_that_the_model_cannot_take(
    refuse: Any, ask: Ask, short: str, data: str, tmp_path: Path
) -> None:
    """An example longer than the context length is an error before a run is created."""
    write(tmp_path / "long.jsonl", {"tokens": [*range(33)]}, {"tokens": [*range(40)]})
    said = "Error: long.jsonl, line 2: 39 tokens; tinker/toy takes 32\n"
    for files in ("long.jsonl", f"{data} --eval-file long.jsonl", "long.jsonl --estimate"):
        told = refuse(1, said, f"train {files}", base_url=short)
        assert told.endswith("Shorten it, or cut longer examples with --max-length 32.\n")
    assert ask("run list", base_url=short)["runs"] == []
    assert len(ask("train long.jsonl --max-length 32", base_url=short)["losses"]) == 1


def test_a_prompt_that_the_model_cannot_take(
    call: Call, ask: Ask, short: str, reward: Any, tmp_path: Path
) -> None:
    """A prompt without room for an answer is an error before a run is created."""
    write(tmp_path / "prompts.jsonl", {"prompt": "a"}, {"prompt": "a b c d"})
    result = call("train prompts.jsonl --grpo reward.py --max-tokens 30", base_url=short)
    said = r"prompts.jsonl, line 2: \d tokens and an answer of 30; tinker/toy takes 32\n"
    assert (result.exit_code, re.search(said, result.stderr) is not None) == (1, True)
    write(tmp_path / "prompts.jsonl", {"prompt": "a" * 32})
    result = call("train prompts.jsonl --grpo reward.py", base_url=short)
    said = "line 1: the prompt has 32 tokens; tinker/toy takes 32, with the answer\nShorten it.\n"
    assert result.stderr.endswith(said)
    assert ask("run list", base_url=short)["runs"] == []


def test_a_model_whose_context_is_not_known(
    ask: Ask, scripted: Callable[..., str], tmp_path: Path
) -> None:
    """Without a known context length, every example is sent."""
    known = {"supported_models": [{"model_name": "tinker/toy"}]}
    url = scripted("/get_server_capabilities", 200, known)
    write(tmp_path / "long.jsonl", {"tokens": [*range(40)]})
    assert len(ask("train long.jsonl", base_url=url)["losses"]) == 1


def test_a_misspelled_model_that_the_server_only_refuses(
    call: Call, scripted: Callable[..., str], data: str
) -> None:
    """Where the server does not say which model was meant, its list does."""
    url = scripted("/create_sampling_session", 400, {"detail": "no such model"}, method="POST")
    for command in (f"train {data}", "sample hi"):
        result = call(f"{command} --model tinker/tyo", base_url=url)
        said = "Error: no such model\nDid you mean tinker/toy?\n"
        assert (result.exit_code, result.stderr) == (1, said)


def test_a_checkpoint_given_by_its_name(call: Call, data: str) -> None:
    """For an unknown model without a similar one, the advice is how to give a checkpoint."""
    shown = "`tinker checkpoint list` shows the paths.\n"
    use = "To use a checkpoint, give the name of its run or its path"
    sampled = f"{use} as the model: tinker://RUN/sampler_weights/NAME; {shown}"
    trained = f"{use}: --from tinker://RUN/weights/NAME; {shown}"
    for command, told in (("sample hi", sampled), ("chat", sampled), (f"train {data}", trained)):
        result = call(f"{command} --model pig-latin", input="")
        assert (result.exit_code, result.stderr.endswith(told)) == (1, True), result.stderr


@pytest.mark.parametrize("listed", [[], [{"model_name": "tinker/toy"}]], ids=["none", "the model"])
def test_a_model_that_is_trained_and_not_sampled(
    ask: Ask, serve: Callable[..., str], data: str, listed: Any
) -> None:
    """A model that is trained but not sampled works if the server lists it or has no list."""
    refused = []

    def answer(_: str, path: str) -> tuple[int, object] | None:
        if path.endswith("/create_sampling_session"):
            refused.append(path)
            return 400, {"detail": "not sampled here"}
        is_list = path.endswith("/get_server_capabilities")
        return (200, {"supported_models": listed}) if is_list else None

    url = serve(answer=answer)
    assert len(ask(f"train {data} --model tinker/toy", base_url=url)["losses"]) == 1
    assert refused


def test_a_server_that_takes_every_model(ask: Ask, serve: Callable[..., str], data: str) -> None:
    """A model that the server does not list is trained if the server accepts it."""
    url = serve(any_base_model=True)
    assert ask(f"train {data} --model some/model", base_url=url)["base_model"] == "some/model"


def test_the_tokenizer_does_not_warn_of_long_examples(server: str, tmp_path: Path) -> None:
    """The length warning of transformers is not shown."""
    write(tmp_path / "long.jsonl", {"text": " ".join(map(str, range(600)))})
    done = subprocess.run(
        [sys.executable, "-m", "tinker.cli", "--base-url", server, "train", "long.jsonl"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "Token indices" not in done.stderr


def test_reports_of_a_run(call: Call, data: str, tmp_path: Path) -> None:
    """Each step is a line with its loss, rate, tokens and speed, and the curves are drawn."""
    options = f"--eval-file {data} --eval-every 4 --log log.jsonl --plot loss.svg"
    result = call(f"train {data} {TRAIN} {options}", code=0)
    log = (tmp_path / "log.jsonl").read_text()
    (start,) = lines_of(log, "start")
    assert (start["base_model"], start["examples"], start["steps"]) == ("tinker/toy", 12, 9)
    steps = lines_of(log, "step")
    assert [line["step"] for line in steps] == list(range(1, 10))
    rates = [round(line["learning_rate"], 5) for line in steps[:4]]
    assert rates == [0.01, 0.02, 0.02, 0.01714]
    assert all(line["tokens"] > 0 and line["tokens_per_second"] > 0 for line in steps)
    evaluations = {line["step"]: line["loss"] for line in lines_of(log, "evaluation")}
    assert list(evaluations) == [0, 4, 8, 9]
    assert evaluations[9] < evaluations[0]
    assert re.search(r"^step 1/9 loss [\d.]+, [\d,]+ tokens/s$", result.stderr, re.MULTILINE)
    shown = re.findall(r"^step (\d)/9 evaluation loss", result.stderr, re.MULTILINE)
    assert (shown, result.stderr.count("evaluation")) == (["0", "4", "8", "9"], 4)
    assert "* loss   o evaluation" in result.stdout
    drawn = ElementTree.parse(tmp_path / "loss.svg")
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["final", "loss", "evaluation"]
    call(f"train {data} {TRAIN} --log log.jsonl --max-steps 1")
    assert len(lines_of((tmp_path / "log.jsonl").read_text(), "step")) == 10  # appended


def test_grpo_raises_the_reward(call: Call, disturbed: Any, prompts: str) -> None:
    """The mean reward rises, and an interrupted run goes on as if nothing had been."""
    result = call(f"-f json train {prompts} {GRPO}", code=0)
    rewards = {line["step"]: line["reward"] for line in lines_of(result.stdout, "step")}
    assert rewards[6] > rewards[1] + 0.1
    assert lines_of(result.stdout, "result")[0]["rewards"] == list(rewards.values())
    url = disturbed("/optim_step", 3, interrupt)
    first = call(f"-f json train {prompts} {GRPO} --save-every 2", base_url=url)
    saves = [line["step"] for line in lines_of(first.stdout, "save")]
    assert (first.exit_code, saves) == (130, [2, 3])
    second = call(f"-f json train {prompts} --resume", base_url=url)
    both = lines_of(first.stdout, "step") + lines_of(second.stdout, "step")
    assert {line["step"]: line["reward"] for line in both} == rewards
    for one in (first, second):
        run = lines_of(one.stdout, "start")[0]["training_run_id"]
        curves = httpx.get(f"{url}/overview", params={"run": run}).json()["curves"]
        shown = [[line["step"], line["reward"]] for line in lines_of(one.stdout, "step")]
        assert curves["reward"] == shown
        steps = {step for step, _ in shown}
        assert {at for curve in curves.values() for at, _ in curve} == steps


WRITTEN_FOR_TRL = (
    "To use a function written for TRL, see 'From TRL' in the documentation: it needs "
    "a few lines around it.\n"
)
RETURN = "def reward(answer, example):\n    return "
LISTS = "reward.py: reward takes lists, as in TRL; here it takes one answer and its line\n"
ASYNC = """
import asyncio
loops = set()
async def reward(answer, example):
    loops.add(asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert len(loops) == 1
    return """


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "x = 1",
            "reward.py has no function reward\nDefine: def reward(answer: str, example: dict) -> "
            f"float\n{WRITTEN_FOR_TRL}",
        ),
        ("def reward(completions, answer, **kwargs):\n    return [0.0]", LISTS + WRITTEN_FOR_TRL),
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
        (
            "async def reward(answer):\n    return 1.0",
            "reward.py:1: reward(answer) cannot be called as reward(answer, example)\n",
        ),
        ("def reward(answer, example):\n    yield 1.0", "reward is a generator"),
        ("async def reward(answer, example):\n    yield 1.0", "reward is a generator"),
    ],
)
def test_a_reward_is_checked_before_anything_is_created(
    refuse: Any, reward: Any, data: str, code: str, words: str
) -> None:
    """A file that does not run, or whose function takes other arguments, is named with its line."""
    reward(code)
    told = refuse(1, words, f"train {data} {GRPO}")
    assert told == f"Error: {words}" or not words.endswith("\n")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"{RETURN}example['no']", "reward.py:2: KeyError: 'no'"),
        (
            "def reward(answer, example):\n    raise ValueError('a\\nb')",
            "reward.py:2: ValueError: a b",
        ),
        (f"{RETURN}float('nan')", "reward.py:1: reward must return a finite number, got nan"),
        (f"\n{RETURN}'no'", "reward.py:2: reward must return a number, got 'no' of type str"),
        (f"{RETURN}None", "reward.py:1: reward must return a number, got None"),
        (f"{ASYNC}1 / 0", "reward.py:8: ZeroDivisionError: division by zero"),
        (f"{ASYNC}None", "reward.py:4: reward must return a number, got None"),
        (f"{ASYNC}float('inf')", "reward.py:4: reward must return a finite number, got inf"),
    ],
)
def test_rewards_that_fail(
    refuse: Any, server: str, prompts: str, reward: Any, code: str, words: str
) -> None:
    """A reward that raises or returns no number ends the run with the line of the file."""
    reward(code)
    said = f"Error: {words}\nThe answer was "
    assert "never awaited" not in refuse(1, said, f"train {prompts} {GRPO}", base_url=server)


def test_a_run_without_different_rewards_learns_nothing(
    call: Call, prompts: str, reward: Any
) -> None:
    """Where all answers to each prompt have the same reward, the run says so at its end."""
    reward(f"{RETURN}1.0")
    said = "Nothing was learned: in every step, all answers to a prompt had the same reward.\n"
    assert said in call(f"train {prompts} {GRPO} --max-steps 1", code=0).stderr


@pytest.mark.parametrize(
    ("code", "returned"),
    [
        (f"import numpy\n{RETURN}numpy.float32(1) if 'a' in answer else True", 1.0),
        (f"import scored_here\n{RETURN}scored_here.SCORE", 2.0),
        (f"{ASYNC}2.5", 2.5),
        (
            ASYNC.replace("async def reward(", "class Judge:\n  async def __call__(self, ")
            + "2.5\nreward = Judge()\n",
            2.5,
        ),
    ],
    ids=["numbers of other types", "a module of its folder", "a coroutine", "an async method"],
)
def test_rewards_of_other_kinds(
    ask: Ask,
    prompts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    returned: float,
) -> None:
    """A reward may be any number, use modules beside it, and be awaited, always in one loop."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "scored_here.py").write_text("SCORE = 2.0")
    (tmp_path / "rewards" / "reward.py").write_text(code)
    grpo = GRPO.replace("reward.py", "rewards/reward.py")
    assert ask(f"train {prompts} {grpo} --max-steps 2")["rewards"] == [returned] * 2


def test_prompts_of_token_ids(ask: Ask, reward: Any, tmp_path: Path) -> None:
    """GRPO takes a prompt as token ids, as `tinker sample --file` does."""
    reward(f"{RETURN}len(example['prompt'])")
    write(tmp_path / "ids.jsonl", {"prompt": [1, 2, 3]})
    assert ask(f"train ids.jsonl {GRPO} --max-steps 1")["rewards"] == [3.0]


def test_invalid_prompts(call: Call, reward: Any, tmp_path: Path) -> None:
    """A line without a prompt and a file without lines are errors."""
    write(tmp_path / "prompts.jsonl", {"prompt": "a"}, {"wanted": "b"})
    grpo = "train prompts.jsonl --grpo reward.py"
    assert "prompts.jsonl, line 2: a line is an object with " in call(grpo).stderr
    (tmp_path / "prompts.jsonl").write_text("\n")
    assert "has no prompts" in call(grpo).stderr


@pytest.mark.parametrize(
    ("code", "command", "words"),
    [
        (2, "train DATA --eval-every 2", "Error: "),
        (2, "train DATA --grpo reward.py --eval-file DATA", "Error: "),
        (2, "train DATA --stop x", "Error: --stop needs --grpo.\n"),
        (2, "train DATA --group-size 8", "Error: --group-size needs --grpo.\n"),
        (2, "train DATA --max-tokens 9", "Error: --max-tokens needs --grpo.\n"),
        (2, "train DATA --temperature 1", "Error: --temperature needs --grpo.\n"),
        (2, "train DATA --dpo --stop x", "--stop needs --grpo."),
        (2, "train DATA --dpo --grpo reward.py", "--dpo and --grpo are two ways to train: give one of them."),
        (
            2,
            "train DATA --grpo reward.py --beta 0.2",
            "--beta needs --dpo. GRPO has no KL penalty: see 'Stay near a reference model' in the documentation.",
        ),
        (2, "train DATA --dpo --beta 0", "Invalid value for '--beta': must be a number above 0"),
        (2, "train DATA --from tinker://run/weights/a --rank 3", "--rank cannot be used with --from"),
        (2, "train DATA --plot x.png", "Error: the chart is an SVG file: name it x.svg\n"),
        (2, "run compare log.jsonl --plot x.png", "Error: the chart is an SVG file: name it x.svg\n"),
        (1, "train DATA --log nowhere/log.jsonl", "There is no folder"),
        (1, "sample a -o nowhere/x.json", "There is no folder"),
        (1, "train DATA --from run/pig-latin", "Invalid checkpoint path: run/pig-latin\n"),
        (2, "checkpoint create --model tinker/toy --from tinker://r/weights/1", "Give either --model"),
        (2, "checkpoint search --metadata step", "'step' is not KEY=VALUE"),
        (2, "sample", "Error: The standard input is empty. Give a PROMPT, pipe one in, or use --prompt-file or --file.\n"),
        (2, "sample a --prompt-file sums.jsonl", "Error: "),
        (2, "sample --file sums.jsonl", "Error: "),
        (2, "sample --temperature -1", "'--temperature': must be a number of at least 0, got -1.0\n"),
        (2, "sample --num-samples 1.5", "'-n' / '--num-samples': must be an integer of at least 1, got '1.5'\n"),
        (2, "sample --seed x", "'--seed': must be an integer, got 'x'\n"),
        (2, "sample --top-p x", "'--top-p': must be a number from 0 to 1, got 'x'\n"),
        (2, "sample --top-p 2", "'--top-p': must be a number from 0 to 1, got 2.0\n"),
        (2, "sample --top-k -5", "Invalid value for '--top-k'"),
        (2, "sample --max-tokens 0", "Invalid value for '--max-tokens'"),
        (2, "chat --max-tokens 0", "Invalid value for '--max-tokens'"),
        (2, "chat --temperature -1", "Invalid value for '--temperature'"),
        (2, "train DATA --max-tokens 0", "Invalid value for '--max-tokens'"),
        (2, "train DATA --temperature -1", "Invalid value for '--temperature'"),
        (2, "conformance --deadline 0", "'--deadline': must be a number above 0, got 0.0\n"),
        (2, "--patience ' is not a valid x' sample", "'--patience': must be a number of at least 0, got ' is not a valid x'\n"),
        (2, "run list --patience x", "'--patience': must be a number of at least 0, got 'x'\n"),
        (2, "run list --access-scope all", "Error: "),
        (1, "billing usage today b", '"b" is not a date: write it like 2026-01-31, 2026-01-31T08:00Z or yesterday'),
        (1, "checkpoint delete", "Nothing to delete"),
        (1, "checkpoint delete --type weights", "need --run-id"),
        (1, "checkpoint delete --run-id r tinker://r/weights/x", "either checkpoint paths or --run-id"),
        (1, "checkpoint delete garbage -y", "Invalid checkpoint path: garbage"),
        (1, "checkpoint delete --run-id r --type zzz", "Valid types: weights, sampler_weights, external_weights"),
        (1, "checkpoint delete --run-id r --before garbage", '"garbage" is not a date: write it like 2026-01-31'),
        (1, "run watch none.jsonl", "Error: There is no file none.jsonl\n"),
        (1, "checkpoint create --model tinker/toy --ttl 5", "--ttl is a number of seconds from 3600 (an hour)"),
        (2, "run show", "Did you mean info?"),
        (2, "checkpoint rm", "Did you mean delete?"),
        (2, "sample --prompt-fil x", "Did you mean --prompt-file?"),
        (2, "train --url x", "No such option '--url'.\n"),
        (2, "--server x train", "No such option '--server'.\n"),
        (2, "train --version", "No such option '--version'.\n"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_right_asks_no_server(
    refuse: Any, reward: Any, data: str, tmp_path: Path, code: int, command: str, words: str
) -> None:
    """Options that contradict each other, and values that nothing takes, are named at once."""
    refuse(code, words, command.replace("DATA", data), input="")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reward.py", "sums.jsonl"]


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
    refuse: Any, reward: Any, data: str, name: str, words: str
) -> None:
    """A name that no server saves under is a wrong call of every command that takes one."""
    for command in (
        f"train {data}",
        f"train {data} --grpo reward.py",
        f"train {data} --resume",
        "checkpoint create --model m",
    ):
        refuse(2, f"Error: Invalid value for '--name': {words}", command, "--name", name)


def test_only_the_last_checkpoints_are_kept(ask: Ask, data: str) -> None:
    """Of the checkpoints that a run saves on its way, --keep-last leaves so many."""
    saves = "--max-steps 4 --batch-size 1 --save-every 1 --keep-last 2 --name few"
    run_id = ask(f"train {data} {saves}")["training_run_id"]
    listed = ask(f"checkpoint list --run-id {run_id}")["checkpoints"]
    assert {one["checkpoint_id"] for one in listed} == {
        "weights/few-000002",
        "weights/few-000003",
        "weights/few",
        "sampler_weights/few",
    }


def test_options_come_from_a_file(ask: Ask, data: str, tmp_path: Path) -> None:
    """A TOML file sets the data and the options by name; the command line comes before it."""
    (tmp_path / "run.toml").write_text(
        f'data = "{data}"\nlr = 0.02\nbatch-size = 2\nmax_steps = 3\nname = '
        '"of-a-file"\ntrain_unembed = false\n'
    )
    given = "--lr 0.02 --batch-size 2 --no-train-unembed --name of-a-file"
    typed = ask(f"train {data} {given} --max-steps 2")
    of_file = ask("train --config run.toml --max-steps 2")
    assert of_file["losses"] == typed["losses"]
    assert of_file["checkpoint_path"].endswith("/of-a-file")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[training]\nx = 2",
            "sets training, which is not an option. A key is the name of an option without its dashes.",
        ),
        ("epochs: 2", "is not TOML: "),
        ("epochs = 0", "Invalid value for '--epochs': must be an integer of at least 1, got 0"),
        ("lr = " + "1" * 5000, ""),
        ("lr = " + "[" * 100_000, ""),
        ('model = "a\\ud83d"', ""),
        ("lr = 1\0", ""),
    ],
    ids=lambda value: value[:20],
)
def test_a_wrong_file_of_options(
    refuse: Any, data: str, tmp_path: Path, text: str, problem: str
) -> None:
    """A file with another form, an unknown name or a wrong value is a wrong call."""
    (tmp_path / "run.toml").write_text(text)
    refuse(2, problem, f"train {data} --config run.toml")


def test_a_pipe_gets_only_steps(call: Call, data: str) -> None:
    """The title of the result's table, which only a terminal shows, is on neither stream."""
    result = call(f"train {data} --max-steps 1")
    assert result.stderr.splitlines()[-1].startswith("step 1/1 loss ")
    assert result.stdout.splitlines()[0].split() == ["Property", "Value"]


def test_the_name_of_a_run_is_listed(call: Call, ask: Ask, data: str) -> None:
    """A name given to a run is stored with it, and shown in the list once a run has one."""
    assert call(f"train {data} --max-steps 1 --name plus-one").exit_code == 0
    assert ask("run list --limit 1")["runs"][0]["user_metadata"] == {"name": "plus-one"}
    listed = call("run list --limit 1").stdout.splitlines()
    columns = ["Run ID", "Name", "Base Model", "LoRA", "Steps", "Loss", "Last Update", "Status"]
    assert re.split(r"\s{2,}", listed[0]) == columns
    assert re.split(r"\s{2,}", listed[1])[1] == "plus-one"
    assert call(f"train {data} --max-steps 1").exit_code == 0
    assert "Name" not in call("run list --limit 1").stdout
    assert call("run list --limit 2 -c name").stdout.split() == ["Name", "plus-one"]


def test_the_short_name_of_the_learning_rate(call: Call, data: str, tmp_path: Path) -> None:
    """--lr is --learning-rate."""
    assert call(f"train {data} --lr 0.5 --schedule constant --log log.jsonl").exit_code == 0
    (step, *_) = lines_of((tmp_path / "log.jsonl").read_text(), "step")
    assert step["learning_rate"] == 0.5


def test_the_command_line_says_that_a_model_loads(call: Call) -> None:
    """A command that loads a model in its process says so, except in JSON."""
    pytest.importorskip("torch")
    result = call("model list", base_url="local://?engine=torch")
    assert result.stderr.startswith("Loading torch and tinker/babble ...\n"), result.stderr
    close_in_process()
    assert call("-f json model list", base_url="local://?engine=torch").stderr == ""
    close_in_process()
