"""The rules for the examples of a chat, judged from texts: what the template writes, rendered by
transformers for each form of the messages, and what the tokens are decoded to.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tinker
from templates.chats import Chat, Message
from templates.tokenizers_made import ENDS_OF_TURNS

_LEARNED, _REFUSED = "learned", "refused"
_RENDERED: dict[tuple[str, str], tuple[list[Rendered], set[str]]] = {}


class Verdict(NamedTuple):
    """What came of a chat: it is learned, or refused in these words."""

    kind: str
    words: str = ""
    said: str = ""


class Example(NamedTuple):
    """All tokens of a datum, and which of them are learned."""

    tokens: list[int]
    learned: list[bool]

    def runs(self) -> list[tuple[int, int]]:
        """Return where each run of learned tokens begins and ends."""
        runs: list[tuple[int, int]] = []
        for is_learned, group in itertools.groupby(
            range(len(self.tokens)), key=self.learned.__getitem__
        ):
            places = list(group)
            if is_learned:
                runs.append((places[0], places[-1] + 1))
        return runs


class Rendered(NamedTuple):
    """What the template writes for one form of the messages, for each answer by its index."""

    asked: dict[int, str]  # the prompt to sample it with
    prompts: dict[int, str]  # as much of that as is before the answer
    wholes: dict[int, str]  # the chat up to and with the answer
    marks: dict[int, set[str]]  # what is behind it where another message follows
    # the answers with which the template writes earlier messages otherwise than their prompts
    changed: set[int]
    shown: set[str]  # the fields that can be seen

    @property
    def torn(self) -> list[int]:
        """The answers that begin otherwise than the prompt ends, which may open a thought."""
        return [at for at in self.prompts if self.prompts[at] != self.asked[at]]


def read_example(datum: tinker.Datum) -> Example:
    """Return the tokens of a datum and those that it learns."""
    inputs = {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}
    targets = inputs["target_tokens"]
    weights = inputs.get("weights", [1.0] * len(targets))
    tokens = [*datum.model_input.to_ints(), targets[-1]]
    return Example(tokens, [False, *(weight > 0 for weight in weights)])


@contextlib.contextmanager
def hear() -> Iterator[list[str]]:
    """Collect what is said meanwhile: warnings, log records and the error output."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            contextlib.redirect_stderr(io.StringIO()) as printed,
        ):
            warnings.simplefilter("always")
            yield heard
    finally:
        logging.getLogger().removeHandler(handler)
        heard += [str(one.message) for one in caught] + printed.getvalue().splitlines()


# --------------------------------------------------------------- what the template writes of a chat


def list_forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield the messages in each form that templates read: parts or texts, values or texts."""
    seen: list[list[Message]] = []
    for how in itertools.product((False, True), (True, False), ("text", "absent")):
        form = [_form(message, *how) for message in messages]
        if form not in seen:
            seen.append(form)
            yield form


def _form(message: Message, as_parts: bool, as_values: bool, empty: str) -> Message:
    shaped: list[dict[str, Any]] = []
    made = {name: one for name, one in message.items() if one is not None and name != "weight"}
    text = _text(message)
    if text is None and empty == "absent":
        made.pop("content", None)
    else:
        made["content"] = [{"type": "text", "text": text or ""}] if as_parts else text or ""
    for call in message.get("tool_calls", ()):
        values = read_arguments(call)
        arguments = values if as_values else json.dumps(values, ensure_ascii=False)
        shaped.append({**call, "function": {**call["function"], "arguments": arguments}})
    if shaped:
        made["tool_calls"] = shaped
    return made


def _text(message: Message) -> str | None:
    """Return the content of a message as one text."""
    content: Any = message.get("content")
    return "".join(part["text"] for part in content) if isinstance(content, list) else content


def read_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call as values."""
    given = call["function"]["arguments"]
    values: dict[str, Any] = json.loads(given) if isinstance(given, str) else given
    return values


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z0-9]+", text)


def list_fields(chat: Chat) -> dict[str, list[str]]:
    """Return the words of each field of the chat, by message number and name, or ``tools``."""
    fields: dict[str, list[str]] = {}
    for position, message in enumerate(chat.messages):
        text = _text(message) or ""
        fields[f"{position} content"] = _words(text.replace("<think>", "").replace("</think>", ""))
        if message.get("reasoning_content"):
            fields[f"{position} reasoning_content"] = _words(message["reasoning_content"])
        if message.get("tool_calls"):
            named = fields[f"{position} tool_calls"] = []
            for call in message["tool_calls"]:
                values = read_arguments(call)
                words = re.findall(r"\w+", repr([*values.values()]))
                # None and True are written by each template in its own way
                shown = [word for word in words if word not in ("None", "True")]
                named += [call["function"]["name"], *values, *shown]
    if chat.tools:
        fields["tools"] = ["Tells"]
    return {name: words for name, words in fields.items() if words}


def _render(tokenizer: Any, messages: Sequence[Message], chat: Chat, is_prompt: bool) -> str:
    given = {"tools": chat.tools} if chat.tools else {}
    text: str = tokenizer.apply_chat_template(
        list(messages),
        tokenize=False,
        add_generation_prompt=is_prompt,
        **given,
        **(chat.options or {}),
    )
    return text


def render_forms(tokenizer: Any, chat: Chat) -> tuple[list[Rendered], set[str]]:
    """Return what the template writes for the forms that it shows most of, and its refusals."""
    answers = [at for at, message in enumerate(chat.messages) if message["role"] == "assistant"]
    found: list[Rendered] = []
    refusals: set[str] = set()
    for messages in list_forms(chat.messages):
        try:
            asked = {at: _render(tokenizer, messages[:at], chat, True) for at in answers if at}
            read = {at: _render(tokenizer, messages[:at], chat, False) for at in asked}
            wholes = {at: _render(tokenizer, messages[: at + 1], chat, False) for at in asked}
        except Exception as error:  # noqa: BLE001 - whatever jinja2, the filters of a template or its own words raise
            refusals.add(str(error))
            continue
        if 0 in answers:
            try:
                wholes[0] = _render(tokenizer, messages[:1], chat, False)
                asked[0] = _prompt_of_nothing(tokenizer, wholes[0], chat)
            except Exception as error:  # noqa: BLE001 - as above; the answer can only be read
                refusals.add(str(error))
                if not asked:
                    continue
        special = tokenizer.get_added_vocab()
        prompts = {at: _shared(asked[at], wholes[at], special) for at in asked}
        marks = {at: _following(tokenizer, messages[: at + 1], wholes[at], chat) for at in wholes}
        changed = {
            at for at in read if len(prompts[at]) < len(_common(read[at], asked[at]).rstrip())
        }
        seen = Rendered(asked, prompts, wholes, marks, changed, set())
        for name, words in list_fields(chat).items():
            where = seen.wholes[_shows(name, sorted(wholes))]
            at = int(name.split()[0]) if name[0].isdigit() else -1
            if at in prompts:
                where = where[len(_common(prompts[at], where)) :]
            if all(word in where for word in words):
                seen.shown.add(name)
        if seen not in found:
            found.append(seen)
    most = max((len(one.shown) for one in found), default=0)
    return [one for one in found if len(one.shown) == most], refusals


def _following(tokenizer: Any, messages: list[Message], whole: str, chat: Chat) -> set[str]:
    """Return the special tokens behind the last answer, also without its thought, where another
    message follows.
    """
    found: set[str] = set()
    plain = [*messages[:-1], {**messages[-1], "content": "Six."}]
    plain[-1].pop("reasoning_content", None)
    ends = [(messages, whole)]
    with contextlib.suppress(Exception):
        ends.append((plain, _render(tokenizer, plain, chat, False)))
    for role in ("user", "tool", "assistant", "system"):
        named = {"name": "weather"} if role == "tool" else {}
        message = {"role": role, "content": "Two?", **named}
        for (before, text), form in itertools.product(ends, list_forms([message])):
            with contextlib.suppress(Exception):
                longer = _render(tokenizer, [*before, *form], chat, False)
                behind = longer[len(text) :] if longer.startswith(text) else ""
                special = tokenizer.get_added_vocab()
                found |= {token for token in special if behind.lstrip().startswith(token)}
    return found


def _shows(field: str, answers: Sequence[int]) -> int:
    """Return the first answer whose text shows a field: the message's own, or the next."""
    if not field[0].isdigit():
        return answers[-1]
    position = int(field.split()[0])
    return next((at for at in answers if at >= position), answers[-1])


def _prompt_of_nothing(tokenizer: Any, whole: str, chat: Chat) -> str:
    """Return what is before the answer that begins a chat: what is before any answer."""
    question = [{"role": "user", "content": "Two?"}]
    for messages in list_forms(question):
        with contextlib.suppress(Exception):
            without, prompt = (
                _render(tokenizer, messages, chat, is_prompt) for is_prompt in (False, True)
            )
            opening = prompt[len(_common(without, prompt)) :]
            if opening and opening in whole:
                return whole[: whole.index(opening) + len(opening)]
    return ""


def _shared(prompt: str, whole: str, special: Iterable[str]) -> str:
    """Return with how much of a prompt the whole begins, without a part of a special token."""
    shared = _common(prompt, whole)
    for token in special:
        start = whole.find(token, max(0, len(shared) - len(token) + 1))
        if len(prompt) > len(shared) and 0 <= start < len(shared) < start + len(token):
            shared = whole[:start]
    return shared


def _common(one: str, other: str) -> str:
    """Return the text with which both begin."""
    return one[: _same(one, other)]


def _same(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return with how many values both begin."""
    differ = (at for at, (a, b) in enumerate(zip(one, other)) if a != b)
    return next(differ, min(len(one), len(other)))


# ---------------------------------------------------------------------------------------- the judge


class Judge:
    """The rules for one tokenizer with its template."""

    def __init__(self, tokenizer: Any, kind: str) -> None:
        self.tokenizer = tokenizer
        self.is_lossless = kind != "word-piece"
        self.special = {str(token) for token in tokenizer.get_added_vocab()}

    def encode(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text if self.is_lossless else re.sub(r"\s+", "", text)

    def seen(self, text: str) -> str:
        """Return a text as it is once it has been tokens."""
        return self.decode(self.encode(text))

    def judge(self, chat: Chat, encode: Callable[[Chat], Sequence[tinker.Datum]]) -> Verdict:
        """Hold the examples of a chat to the rules; AssertionError names the broken one."""
        key = (self.tokenizer.chat_template, repr(chat))
        if key not in _RENDERED:  # the same for each kind of tokenizer
            _RENDERED[key] = render_forms(self.tokenizer, chat)
        forms, refusals = _RENDERED[key]
        with hear() as heard:
            try:
                examples = [read_example(datum) for datum in encode(chat)]
            except ValueError as error:
                words = str(error)
                self._check_refusal(chat, forms, refusals, words)
                return Verdict(_REFUSED, words)
        said = " | ".join(heard)
        assert forms, (
            f"the template refuses it ({'; '.join(refusals)}), and an example is made of it"
        )
        complaints: list[str] = []
        for rendered in forms:
            try:
                self._check(chat, rendered, examples, said)
            except AssertionError as error:
                complaints.append(str(error))
            else:
                return Verdict(_LEARNED, said=said)
        raise AssertionError(complaints[0])

    def _check_refusal(
        self, chat: Chat, forms: Sequence[Rendered], refusals: set[str], words: str
    ) -> None:
        """Hold a refusal to the words of the template, or to what it does not write of the chat."""
        hidden = set(list_fields(chat)) - (forms[0].shown if forms else set())
        named = {
            name.split()[-1]
            for name in hidden
            if not name.endswith("content") or name.endswith("reasoning_content")
        }
        reasons = [*refusals, *named]
        if forms and forms[0].changed:
            reasons += ["changes earlier messages"]
        if len(chat.messages) == 1:
            reasons += ["assistant"]
        assert reasons or forms, f"refused, although the template writes all of it: {words}"
        assert any(reason in words for reason in reasons), (
            f"refused, but not because of {reasons}: {words}"
        )

    def _check(
        self, chat: Chat, rendered: Rendered, examples: Sequence[Example], said: str
    ) -> None:
        learned = [at for at in sorted(rendered.wholes) if chat.messages[at].get("weight", 1)]
        # the first answer is only read
        if chat.messages[0]["role"] == "assistant" and _is_said("read", said):
            learned = [at for at in learned if at]
        torn = [at for at in rendered.torn if self._is_torn(rendered, at)]
        assert not torn or _is_said("prompt", said), (
            "the prompt ends otherwise than the answer begins, and nothing says so"
        )
        self._check_answers(rendered, examples, learned, said)
        self._check_nothing_vanishes(chat, examples, learned, said)

    def _is_torn(self, rendered: Rendered, at: int) -> bool:
        """Return whether tokens show it, too."""
        asked = self.encode(rendered.asked[at])
        return self.encode(rendered.wholes[at])[: len(asked)] != asked

    def _check_answers(
        self, rendered: Rendered, examples: Sequence[Example], learned: Sequence[int], said: str
    ) -> None:
        """Find each answer behind its prompt, in the example of the one before or the next one."""
        pieces: list[list[tuple[int, int]]] = []  # where each answer begins, of each example
        for at in learned:
            start = self._find(rendered, examples[len(pieces) - 1], at) if pieces else None
            keeps = self._keeps(rendered, pieces[-1][-1][0], at) if pieces else False
            if start is not None:
                assert keeps is not False, (
                    f"answer {at} in the example of one that the template writes otherwise by then"
                )
                pieces[-1].append((at, start))
                continue
            if keeps:
                before, tokens = examples[len(pieces) - 1], self.encode(rendered.prompts[at])
                end = before.runs()[-1][1]
                is_lengthened = tokens[:end] == before.tokens[:end]
                assert not is_lengthened, (
                    f"another example for answer {at}, although the template keeps what it wrote"
                )
            assert len(pieces) < len(examples), f"there is no example for answer {at}"
            start = self._find(rendered, examples[len(pieces)], at)
            assert start is not None, self._compare(examples[len(pieces)], rendered.prompts[at], at)
            pieces.append([(at, start)])
        assert len(pieces) == len(examples), (
            f"{len(examples)} examples for the answers {list(learned)}"
        )
        for example, starts in zip(examples, pieces, strict=True):
            for (at, start), (_, following) in itertools.zip_longest(
                starts, starts[1:], fillvalue=(0, len(example.tokens))
            ):
                _, end = next(run for run in example.runs() if run[0] <= start < run[1])
                self._check_answer(rendered, example.tokens, at, start, min(end, following), said)
            places = {start for _, start in starts}
            for begin, end in example.runs():
                shown = self._show(example)
                assert any(begin <= start < end for start in places), (
                    f"no answer is learned: {shown}"
                )
                assert begin in places, f"a prompt is learned: {shown}"

    def _find(self, rendered: Rendered, example: Example, at: int) -> int | None:
        """Return where the answer begins in the example; None where its prompt is not before it."""
        if not example.runs():
            return None
        if at == 0:  # what comes before it is not sampled
            return example.runs()[0][0]
        prompts = [self.encode(rendered.prompts[at])]
        if at in rendered.torn:
            asked, whole = self.encode(rendered.asked[at]), self.encode(rendered.wholes[at])
            prompts.append(asked[: _same(asked, [*whole, *asked[len(whole) :]])])
        ends = [len(prompt) for prompt in prompts if example.tokens[: len(prompt)] == prompt]
        starts = [end for end in ends if example.learned[end : end + 1] == [True]]
        return min(starts, key=lambda end: example.learned[end - 1], default=None)

    def _check_answer(
        self, rendered: Rendered, tokens: list[int], at: int, start: int, end: int, said: str
    ) -> None:
        """Hold what is learned of an answer to what the template writes, its end included."""
        whole, before = rendered.wholes[at], self.decode(tokens[:start])
        ends = [whole, whole.rstrip()]
        # what ends it is the mark of the next turn, or the end of the text
        if not self._has_end(whole):
            marks = (*rendered.marks[at], self.tokenizer.eos_token)
            ends = [one + mark for mark in marks for one in ends] + ends
        elif whole.endswith(self.tokenizer.eos_token) and self._has_end(
            kept := whole.removesuffix(self.tokenizer.eos_token)
        ):
            ends += [kept, kept.rstrip()]  # that of the text is written behind the last answer only
        got = self.decode(tokens[:end])
        wanted = [self.seen(text) for text in ends]
        assert got in wanted, (
            f"answer {at} is learned as {got[len(before) :]!r}, not "
            f"{[one[len(before) :] for one in wanted][:2]}"
        )
        learned = ends[wanted.index(got)]
        assert (
            self._has_end(learned)
            or learned.endswith((*rendered.marks[at], self.tokenizer.eos_token))
            or _is_said("end", said)
        ), f"no end of answer {at} is learned, and nothing says so: {got[-60:]!r}"

    def _keeps(self, rendered: Rendered, one: int, other: int) -> bool | None:
        """Return whether an answer is in the next one's prompt; None if only an end is gone."""
        whole, later = rendered.wholes[one], rendered.prompts[other]
        begins = later.startswith(rendered.prompts[one])
        if not begins or not rendered.wholes[other].startswith(later):
            return False
        if later.startswith(whole):
            return True
        kept = len(_common(whole, later))
        written = whole[len(rendered.prompts[one]) : kept]
        gone = whole[kept:]
        is_end = gone in (self.tokenizer.eos_token, self.tokenizer.eos_token[1:])
        return None if is_end and any(token in written for token in self.special) else False

    def _has_end(self, text: str) -> bool:
        return text.rstrip().endswith((*ENDS_OF_TURNS, self.tokenizer.eos_token))

    def _check_nothing_vanishes(
        self, chat: Chat, examples: Sequence[Example], learned: Sequence[int], said: str
    ) -> None:
        """Hold each field to be seen: of an answer in what is learned, else in what is read."""
        runs = [
            self.decode(example.tokens[start:end])
            for example in examples
            for start, end in example.runs()
        ]
        everything = [self.decode(example.tokens) for example in examples]
        for name, words in list_fields(chat).items():
            position = int(name.split()[0]) if name[0].isdigit() else None
            if position is not None and position > max(learned, default=-1):
                continue  # nothing is learned behind it
            where = runs if position in learned else everything
            if not any(all(word in text for word in words) for text in where):
                role = "tools" if position is None else chat.messages[position]["role"]
                names = (name.split()[-1], role)
                # a first token cannot be learned
                is_read = position == 0 and (0 not in learned or examples[0].learned[1])
                is_said = is_read or any(_is_said(one, said) for one in names)
                assert is_said, f"{name} ({' '.join(words)}) vanishes, and nothing says so"

    def _show(self, example: Example) -> str:
        return " ... ".join(
            repr(self.decode(example.tokens[start:end])) for start, end in example.runs()
        )

    def _compare(self, example: Example, prompt: str, at: int) -> str:
        got, wanted = example.tokens, self.encode(prompt)
        same = _same(got, wanted)
        if same == len(wanted):
            shown = self._show(example)
            return f"the answer does not begin where the prompt of answer {at} ends: {shown}"
        found, instead = (
            self.tokenizer.convert_ids_to_tokens(one[same:])[:6] for one in (got, wanted)
        )
        where = f"{found} instead of {instead} at {same} of {len(wanted)}"
        return f"the example does not begin with the prompt's tokens of answer {at}: {where}"


def _is_said(name: str, said: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", said, re.IGNORECASE) is not None


def encode_publicly(tokenizer: Any, chat: Chat) -> Sequence[tinker.Datum]:
    """Make the examples of a chat with the public function."""
    given: Mapping[str, Any] = {"tools": chat.tools, "chat_template_kwargs": chat.options}
    return tinker.data.examples_from_messages(tokenizer, chat.messages, **given)
