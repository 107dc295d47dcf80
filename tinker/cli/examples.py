"""Examples to train on: lines of a JSONL file, and their tokens with the weight of each.

A line is a prompt with its answer, a chat, a text, or tokens:

    {"prompt": "2 + 2 =", "completion": " 4"}          also "answer" or "response"; only the answer is learned
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
    {"text": "To be, or not to be"}                    all of it is learned
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}       weights may be missing: all 1
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from tinker.cli.capacity import Capacity
from tinker.cli.errors import CommandFailed
from tinker.cli.jsonl import read_records
from tinker.cli.output import format_count
from tinker.types import Datum, ModelInput
from tinker_records import find_closest

_ANSWERS = ("completion", "answer", "response")
#: What other data sets call the keys.
_OTHER_NAMES = {
    "prompt": ("instruction", "input", "question", "query", "problem"),
    "completion": ("output", "target", "label", "solution", "chosen"),
    "messages": ("conversations", "conversation", "dialog", "dialogue", "chat"),
    "text": ("content", "document"),
    "tokens": ("input_ids", "token_ids"),
}
_LEARNED_ROLE = "assistant"
PROMPT_ADVICE = 'Give a "prompt" instead of "messages".'


class ExampleRow(NamedTuple):
    """Tokens, and how much each is learned."""

    tokens: list[int]
    weights: list[float]

    def datum(self) -> Datum:
        """Make the datum in which each token is predicted from those before it; the first one cannot be learned."""
        inputs: Any = {"target_tokens": self.tokens[1:], "weights": self.weights[1:]}
        return Datum(ModelInput.from_ints(self.tokens[:-1]), inputs)

    @property
    def weight(self) -> float:
        """Return what the loss of this example is divided by."""
        return sum(self.weights[1:])


def read_examples(file: Path, tokenizer: Any, max_length: int | None, capacity: Capacity | None = None) -> list[ExampleRow]:
    """Read every line of the file.

    CommandFailed naming the line that is not an example, has nothing to learn, has an id of no token or is too long.

    Examples longer than ``max_length`` tokens are cut at the end.
    """
    examples: list[ExampleRow] = []
    ids = _count_ids(tokenizer)
    for number, record in read_records(file):
        examples.append(_cut(_read_record(file, number, record, tokenizer), max_length, file, number))
        _check_ids(examples[-1], ids, file, number)
        _check_length(examples[-1], capacity, file, number)
    if not examples:
        raise CommandFailed(f"{file} has no examples")
    return examples


def check_lines(file: Path) -> None:
    """Check what can be checked without a tokenizer: that every line is an example. CommandFailed as from read_examples."""
    read_examples(file, _NoTokenizer(), None)


class TextDecoder:
    """Decodes samples for people: the special tokens at their end, which say only that a sample is over, are left out.

    ``skip_special`` leaves all special tokens out: where a stop replaces the end of a text, the model may go on behind it.
    """

    def __init__(self, tokenizer: Any, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._special: frozenset[int] = frozenset(getattr(tokenizer, "all_special_ids", ()))

    def decode(self, token_ids: Sequence[int], /) -> str:
        """Return the text of the tokens of a sample, or of its beginning."""
        tokens = list(token_ids)
        while tokens and tokens[-1] in self._special:
            tokens.pop()
        return str(self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special)) if tokens else ""


class _NoTokenizer:
    """Stands in for a tokenizer where only the form of the lines counts: every letter and the end of a text is a token."""

    eos_token_id = -1
    chat_template = "any"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * (len(text) + add_special_tokens)

    def apply_chat_template(self, messages: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        return "m" * (2 * len(messages) + add_generation_prompt)


def _read_record(file: Path, number: int, record: dict[str, Any], tokenizer: Any) -> ExampleRow:
    try:
        return _example(record, tokenizer)
    except (ValueError, TypeError, KeyError) as error:
        raise CommandFailed(f"{file}, line {number}: {error}") from error


def _cut(example: ExampleRow, max_length: int | None, file: Path, number: int) -> ExampleRow:
    example = ExampleRow(example.tokens[:max_length], example.weights[:max_length])
    if example.weight <= 0:
        raise CommandFailed(f"{file}, line {number}: nothing to learn: no token after the first one has weight")
    return example


def _count_ids(tokenizer: Any) -> int | None:
    """Return the size of the vocabulary, added tokens included; None where the tokenizer does not say it."""
    return max(tokenizer.get_vocab().values()) + 1 if hasattr(tokenizer, "get_vocab") else None


def _check_ids(example: ExampleRow, count: int | None, file: Path, number: int) -> None:
    wrong = None if count is None else next((token for token in example.tokens if not 0 <= token < count), None)
    if count is not None and wrong is not None:
        raise CommandFailed(f"{file}, line {number}: there is no token id {wrong}; ids run from 0 to {count - 1}")


def _check_length(example: ExampleRow, capacity: Capacity | None, file: Path, number: int) -> None:
    count = len(example.tokens) - 1  # the last token is predicted, not read
    if capacity is not None and capacity.is_exceeded(count):
        advice = f"Shorten it, or cut longer examples with --max-length {capacity.tokens}."
        raise CommandFailed(f"{file}, line {number}: {count:,} tokens; {capacity}", advice)


def _example(line: dict[str, Any], tokenizer: Any) -> ExampleRow:
    answer = next((name for name in _ANSWERS if name in line), None)
    if "messages" in line:
        return _chat_example(tokenizer, line["messages"])
    if "prompt" in line and answer is not None:
        return _prompt_example(tokenizer, line["prompt"], answer, line[answer])
    if "text" in line:
        tokens = _with_end(tokenizer, tokenizer.encode(_require_text(line, "text")))
        return ExampleRow(tokens, [1.0] * len(tokens))
    if "tokens" in line:
        if "weights" not in line and (wrong := find_closest("weights", line)) is not None:
            raise ValueError(_explain_misspelt(wrong, "weights"))
        return _token_example(line["tokens"], line.get("weights"))
    raise ValueError(_explain_fields(line))


def _explain_fields(line: dict[str, Any]) -> str:
    """Say what an example without the fields of any kind lacks, or which of its keys have another name here."""
    answer = next((name for name in _ANSWERS if name in line), None)
    names: Collection[str] = _OTHER_NAMES
    lacking = f'an example has "prompt" and "{_ANSWERS[0]}", or "messages", or "text", or "tokens"'
    if "prompt" in line:
        lacking, names = f'"prompt" needs "{_ANSWERS[0]}" beside it', _ANSWERS[:1]
    elif answer is not None:
        lacking, names = f'"{answer}" needs "prompt" beside it', ["prompt"]
    return _explain_keys(line, lacking, names, ["prompt", *_ANSWERS, "messages", "text", "tokens"])


def _explain_keys(line: dict[str, Any], lacking: str, names: Collection[str], known: Collection[str]) -> str:
    """Say what a line lacks: which of its keys to rename to one of ``names``, or which resemble one that is known."""
    others = {name: [f'"{other}"' for other in _OTHER_NAMES[name] if other in line] for name in names if name not in line}
    found = {name: keys for name, keys in others.items() if keys}
    if "prompt" in found or _ANSWERS[0] in found:
        found = {name: keys for name, keys in found.items() if name in ("prompt", _ANSWERS[0])}
    if found:
        renamed = [
            f'{"rename" if len(keys) == 1 else "join"} {" and ".join(keys)} {"to" if len(keys) == 1 else "into"} "{name}"'
            for name, keys in found.items()
        ]
        return f"{lacking}; got {', '.join(line)}: {' and '.join(renamed)}"
    meant = {name: find_closest(name, known) for name in line if name not in known}
    misspelt = [_explain_misspelt(name, right) for name, right in meant.items() if right not in (None, *line)]
    return "; ".join(misspelt) or f"{lacking}; got {', '.join(line) or 'nothing'}"


def _explain_misspelt(name: str, meant: str | None) -> str:
    return f'unknown key "{name}"; did you mean "{meant}"?'


def explain_prompt_keys(line: dict[str, Any]) -> str:
    """Say what a line without a prompt lacks."""
    names = ("prompt", "messages")
    return _explain_keys(line, 'a line is an object with "prompt" or "messages"', names, names)


def _require_text(line: dict[str, Any], name: str) -> str:
    value = line[name]
    if not isinstance(value, str):
        raise ValueError(f'"{name}" must be a string, got {type(value).__name__}')
    if not value:
        raise ValueError(f"the {name} is empty")
    return value


def _prompt_example(tokenizer: Any, prompt: object, name: str, answer: object) -> ExampleRow:
    if not isinstance(prompt, str) or not isinstance(answer, str):
        raise ValueError(f"the prompt and the {name} must be strings")
    if not answer:
        raise ValueError(f"the {name} is empty")
    before: list[int] = tokenizer.encode(prompt)
    after = _with_end(tokenizer, tokenizer.encode(answer, add_special_tokens=False))
    return ExampleRow(before + after, [0.0] * len(before) + [1.0] * len(after))


def _with_end(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Append the token that ends a text, so that the model learns to stop."""
    end: int | None = tokenizer.eos_token_id
    return tokens if end is None or tokens[-1:] == [end] else [*tokens, end]


def _token_example(tokens: list[Any], weights: Sequence[float] | None) -> ExampleRow:
    check_token_ids(tokens, '"tokens" must be a list of integers from 0')
    if weights is not None and len(weights) != len(tokens):
        counts = f"{format_count(len(tokens), 'token')} and {format_count(len(weights), 'weight')}"
        raise ValueError(f'"weights" must have one entry per token, got {counts}')
    return ExampleRow(list(tokens), [1.0] * len(tokens) if weights is None else [float(weight) for weight in weights])


def check_token_ids(tokens: object, rule: str) -> None:
    """ValueError with the rule, naming the first position, from 0, at which there is no id of a token."""
    if not isinstance(tokens, list):
        raise ValueError(f"{rule}, got {type(tokens).__name__}")
    for position, token in enumerate(cast("list[object]", tokens)):
        if type(token) is not int or token < 0:
            raise ValueError(f"{rule}; at position {position} it has {json.dumps(token)[:40]}")


def check_messages(messages: object) -> None:
    """ValueError naming the first message without a role."""
    if not isinstance(messages, list):
        raise ValueError(f'"messages" must be a list, got {type(messages).__name__}')
    for position, message in enumerate(cast("list[object]", messages)):
        fields = cast("dict[str, object]", message) if isinstance(message, dict) else {}
        if not isinstance(fields.get("role"), str):
            got = f"; it has {', '.join(fields)}" if fields else ""
            raise ValueError(f'message {position} has no "role"{got}; a message is {{"role": "user", "content": "Hi"}}')


def _chat_example(tokenizer: Any, messages: Sequence[dict[str, Any]]) -> ExampleRow:
    """Give weight to what the assistant says: what each of its messages adds to the tokens of those before it."""
    check_messages(messages)
    if not any(message["role"] == _LEARNED_ROLE for message in messages):
        raise ValueError(f'no message has the role "{_LEARNED_ROLE}", so there is nothing to learn')
    tokens: list[int] = []
    weights: list[float] = []
    for count, message in enumerate(messages, start=1):
        if message["role"] == _LEARNED_ROLE:
            _extend(tokens, weights, chat_tokens(tokenizer, messages[: count - 1], prompt=True), 0.0)
            _extend(tokens, weights, chat_tokens(tokenizer, messages[:count], prompt=False), 1.0)
    return ExampleRow(tokens, weights)


def _extend(tokens: list[int], weights: list[float], longer: list[int], weight: float) -> None:
    if longer[: len(tokens)] != tokens:
        raise ValueError("the chat template changes earlier messages when later ones come; split it into single answers")
    weights += [weight] * (len(longer) - len(tokens))
    tokens[:] = longer


def chat_tokens(
    tokenizer: Any, messages: Sequence[dict[str, str]], *, prompt: bool, advice: str = 'Use prompts and completions, or "text".'
) -> list[int]:
    """Encode messages in the model's template; ``prompt`` adds what begins an answer. CommandFailed without a template."""
    if not getattr(tokenizer, "chat_template", None):
        raise CommandFailed("this model has no chat template", advice)
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens
