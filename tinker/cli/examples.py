"""Examples to train on: lines of a JSONL file, and their tokens with the weight of each.

A line is a prompt with its answer, a chat, a text, or tokens:

    {"prompt": "2 + 2 =", "completion": " 4"}          also "answer" or "response"; only the answer
                                                       is learned
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    {"prompt": [messages], "completion": [messages]}   a chat of which only the completion is
                                                       learned, as TRL has it
    {"text": "To be, or not to be"}                    all of it is learned
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}       weights may be missing: all 1
    {"input_ids": [5, 17, 3], "labels": [-100, 17, 3]} as transformers has them; with an
                                                       attention mask, only what it shows

or as in the data sets of ShareGPT and Alpaca, as messages:

    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
    {"instruction": "Add.", "input": "2 + 2", "output": "4"}

With --dpo a line is a pair of answers to a prompt, texts or messages:

    {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    {"chosen": [messages], "rejected": [messages]}     whole chats: the messages that both begin
                                                       with are the prompt
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import tinker
from tinker._chat import (
    LARGEST_WEIGHT,
    Encoded,
    Example,
    encode_completion,
    encode_examples,
    read_options,
    take_one,
    with_end,
)
from tinker.cli.errors import CommandFailed
from tinker.cli.hints import read_hints
from tinker.cli.model_input import Capacity
from tinker.cli.output import format_count, say, say_once
from tinker.cli.reading import (
    RowError,
    check_token_ids,
    explain_keys,
    explain_typo,
    normalize_line,
    read_rows,
)

_ANSWERS = ("completion", "answer", "response")
_NOT_LEARNED = -100  # the label of a token that is not learned, in transformers
_MASKS = ("completion_mask", "assistant_masks")  # of the tokens that are learned, in TRL


class ExampleRow(NamedTuple):
    """The tokens of an example, and the weight of each in the loss."""

    tokens: list[int]
    weights: list[float]

    def datum(self) -> tinker.Datum:
        """Make the datum in which each token is predicted from those before it; the first one
        cannot be learned.
        """
        return tinker.data.from_tokens(self.tokens, self.weights)

    @property
    def weight(self) -> float:
        """Return the sum of the weights, by which the loss is divided."""
        return sum(self.weights[1:])

    def likelihood(self, logprobs: Sequence[float]) -> float:
        """Return the log-likelihood of what is learned, from that of each token after the first."""
        return sum(weight * value for weight, value in zip(self.weights[1:], logprobs) if weight)


def read_examples(
    file: Path,
    tokenizer: Any,
    max_length: int | None,
    capacity: Capacity | None = None,
    chat_options: Mapping[str, object] | None = None,
    *,
    is_pairs: bool = False,
) -> list[ExampleRow]:
    """Read every line of the file. Examples longer than ``max_length`` tokens are cut at the end.

    Those of which nothing is left to learn are left out, which is said, as is what a chat template
    does not write, and how many lines have more than one example. A pair is two rows: the chosen
    answer, and then the rejected one. CommandFailed names the line that is not an example, has
    nothing to learn, has an unknown token id or is too long.
    """
    count = max(tokenizer.get_vocab().values()) + 1 if hasattr(tokenizer, "get_vocab") else None

    def parse(record: dict[str, Any]) -> list[ExampleRow]:
        examples, unwritten = (_encode_pair if is_pairs else _encode)(
            normalize_line(record), tokenizer, chat_options
        )
        for one in unwritten:
            say_once(f"{file}: {one.message}")
        return [cut(*example) for example in examples]

    def cut(tokens: list[int], weights: list[float]) -> ExampleRow:
        example = ExampleRow(tokens[:max_length], weights[:max_length])
        if example.weight <= 0 and len(example.tokens) == len(tokens):
            raise RowError("nothing to learn: no token after the first one has weight")
        if count is not None and (
            unknown := [token for token in example.tokens if not 0 <= token < count]
        ):
            raise RowError(f"there is no token id {unknown[0]}; ids run from 0 to {count - 1}")
        length = len(example.tokens) - 1  # the last token is predicted, not read
        if capacity is not None and capacity.is_exceeded(length):
            advice = f"Shorten it, or cut longer examples with --max-length {capacity.tokens}."
            raise RowError(f"{length:,} tokens; {capacity}", advice)
        return example

    rows = lines = read_rows(file, "examples", parse)
    if not is_pairs:
        rows = [[example] for line in lines for example in line]
    if len(rows) > len(lines):
        reason = "the chat template changes earlier messages when later ones come"
        say(
            f"{format_count(len(lines), 'line')} of {file} became "
            f"{format_count(len(rows), 'example')}: {reason}"
        )
    kept = [row for row in rows if all(one.weight > 0 for one in row)]
    if not kept:
        raise CommandFailed(f"{file} has nothing to learn within --max-length {max_length}")
    if left_out := len(rows) - len(kept):
        say(
            f"{format_count(left_out, 'example')} of {file} left out: nothing to learn within "
            f"--max-length {max_length}"
        )
    return [one for row in kept for one in row]


def check_lines(file: Path, *, is_pairs: bool = False) -> bool:
    """Check without a tokenizer that every line is an example, and return whether one is a chat.
    CommandFailed as above.
    """
    read_examples(file, stand_in := _NoTokenizer(), None, is_pairs=is_pairs)
    return stand_in.has_read_chat


class _NoTokenizer:
    """A stand-in for checks without a tokenizer: every letter is a token, and a chat is written as
    JSON.
    """

    eos_token_id = -1
    chat_template = "any"
    has_read_chat = False

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * (len(text) + add_special_tokens)

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: object) -> str:
        self.has_read_chat = True
        return "".join(map(json.dumps, [options.get("tools"), *messages]))


def _encode(
    line: dict[str, Any], tokenizer: Any, chat_options: Mapping[str, object] | None
) -> Encoded:
    answer = next((name for name in _ANSWERS if name in line), None)
    extras = (line.get("tools"), read_options(chat_options, line.get("chat_template_kwargs")))
    if "functions" in line:
        raise ValueError(
            '"functions" reach no chat template; write "tools": '
            '[{"type": "function", "function": ...}]'
        )
    if "messages" in line:
        if "text" in line:
            raise ValueError('a line has "messages" and "text"; keep one of them')
        return encode_examples(tokenizer, line["messages"], *extras)
    if "rejected" in line:
        raise ValueError('"rejected" is for preference pairs: to learn from them, add --dpo')
    if isinstance(line.get("label"), bool):
        raise ValueError(
            '"label" is for preferences without pairs, which `tinker train` does '
            "not learn: see docs/dpo.md"
        )
    if "prompt" in line and answer is not None:
        return encode_completion(tokenizer, line["prompt"], line[answer], *extras, name=answer)
    tokens, weights = _encode_tokens(line, tokenizer)
    return Encoded([Example(tokens, weights)], [])


def _encode_tokens(line: dict[str, Any], tokenizer: Any) -> ExampleRow:
    if "text" in line:
        if not isinstance(text := line["text"], str):
            raise ValueError(f'"text" must be a string, got {type(text).__name__}')
        if not text:
            raise ValueError("the text is empty")
        tokens = with_end(tokenizer, tokenizer.encode(text))
        return ExampleRow(tokens, [1.0] * len(tokens))
    if "input_ids" in line and "tokens" not in line:
        line = {**line, "tokens": line["input_ids"]}
    masks = [line[name] for name in _MASKS if name in line]
    if "tokens" in line and masks and "labels" not in line:
        line = {**line, "labels": _mask_labels(line["tokens"], masks)}
    if "tokens" in line:
        from tinker_records import find_closest

        if line.keys() & {"labels", "attention_mask"} and "weights" not in line:
            tokens = line["tokens"]
            return _read_labels(
                tokens, line.get("labels", tokens), line.get("attention_mask", [1] * len(tokens))
            )
        if "weights" not in line and (wrong := find_closest("weights", line)) is not None:
            raise ValueError(explain_typo(wrong, "weights"))
        return _token_example(line["tokens"], line.get("weights"))
    raise ValueError(_explain_fields(line))


def _explain_fields(line: dict[str, Any]) -> str:
    """Explain why a line is not an example: missing, misspelled or differently named keys."""
    answer = next((name for name in _ANSWERS if name in line), None)
    names: Collection[str] = ["prompt", _ANSWERS[0], "messages", "text", "tokens"]
    lacking = f'an example has "prompt" and "{_ANSWERS[0]}", or "messages", or "text", or "tokens"'
    if "prompt" in line:
        alone = (
            "" if len(line) > 1 else ", or a reward function to score its answers: --grpo REWARD.py"
        )
        lacking, names = f'"prompt" needs "{_ANSWERS[0]}" beside it{alone}', _ANSWERS[:1]
    elif answer is not None:
        lacking, names = f'"{answer}" needs "prompt" beside it', ["prompt"]
    return explain_keys(line, lacking, names, ["prompt", *_ANSWERS, "messages", "text", "tokens"])


def _read_labels(tokens: list[Any], labels: list[Any], mask: list[Any]) -> ExampleRow:
    """Make an example of what the models of transformers are given: each label is its token, or
    says that it is not learned.
    """
    check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    if not len(tokens) == len(labels) == len(mask):
        raise ValueError(
            f'"labels" and "attention_mask" must have {len(tokens)} entries, one per token'
        )
    for position, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        if label not in (token, _NOT_LEARNED):
            rule = f"a label is the token itself, not the next one, or {_NOT_LEARNED}"
            raise ValueError(
                f'"labels" has {label} at position {position}, where the token is {token}; {rule}'
            )
    shown = [position for position, is_shown in enumerate(mask) if is_shown]
    return ExampleRow(
        [tokens[at] for at in shown], [float(labels[at] != _NOT_LEARNED) for at in shown]
    )


def _mask_labels(tokens: list[Any], masks: list[list[Any]]) -> list[Any]:
    """Return the labels that masks stand for: a token is learned where all of them are 1."""
    check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    if any(len(mask) != len(tokens) for mask in masks):
        raise ValueError(f"{' and '.join(_MASKS)} must have {len(tokens)} entries, one per token")
    return [
        token if all(learned) else _NOT_LEARNED
        for token, *learned in zip(tokens, *masks, strict=True)
    ]


def _token_example(tokens: list[Any], weights: Sequence[Any] | None) -> ExampleRow:
    check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    weights = [1.0] * len(tokens) if weights is None else weights
    if len(weights) != len(tokens):
        counts = f"{format_count(len(tokens), 'token')} and {format_count(len(weights), 'weight')}"
        raise ValueError(f'"weights" must have one entry per token, got {counts}')
    for position, weight in enumerate(weights):
        if not isinstance(weight, (int, float)) or not abs(weight) <= LARGEST_WEIGHT:
            raise ValueError(
                f'"weights" must be finite numbers; at position {position} it has '
                f"{json.dumps(weight)[:40]}"
            )
    return ExampleRow(tokens, list(map(float, weights)))


def _encode_pair(
    line: dict[str, Any], tokenizer: Any, chat_options: Mapping[str, object] | None
) -> Encoded:
    """Encode the chosen and the rejected answer of a preference pair. What whole chats both begin
    with is their prompt.
    """
    known = ("prompt", "chosen", "rejected", "tools", "chat_template_kwargs")
    fields: list[Any] = [line.get(name) for name in known[:3]]
    prompt, chosen, rejected = fields
    kinds: list[object] = [type(chosen), type(rejected)]
    if kinds not in ([str, str], [list, list]):
        lacking = (
            'with --dpo, "chosen" and "rejected" must both be strings, or both lists of messages'
        )
        raise ValueError(explain_keys(line, lacking, (), known))
    if chosen == rejected:
        raise ValueError('"chosen" and "rejected" are equal, so neither can be preferred')
    is_chat = list in kinds
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected)))
    if prompt is None and (
        not shared or (not is_chat and line.keys() & set(read_hints()["keys"]["prompt"]))
    ):
        lacking = '"chosen" and "rejected" need "prompt" beside them, or a common beginning'
        raise ValueError(explain_keys(line, lacking, ("prompt",), known))
    # the text of a prompt may be beside whole chats
    if shared and is_chat and (prompt is None or isinstance(prompt, str)):
        prompt, chosen, rejected = chosen[:shared], chosen[shared:], rejected[shared:]
    # what texts have in common is as likely in both, wherever it ends
    prompt = "" if prompt is None else prompt
    extras = (line.get("tools"), read_options(chat_options, line.get("chat_template_kwargs")))
    answers = [
        encode_completion(tokenizer, prompt, answer, *extras, name=f"{name} answer")
        for name, answer in (("chosen", chosen), ("rejected", rejected))
    ]
    return Encoded(
        list(map(take_one, answers)), [one for answer in answers for one in answer.unwritten]
    )
