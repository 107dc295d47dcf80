"""Make the training data of tokens, completions, chats and samples, and prompts of chats.

The functions are in addition to the official SDK; what they return is a plain :class:`tinker.Datum`
or :class:`tinker.ModelInput`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tinker._basics.checks import check_kind, warn
from tinker._chat import (
    ChatTurn,
    Encoded,
    Unwritten,
    encode_completion,
    encode_examples,
    encode_prompt,
    take_one,
)
from tinker._validate import EXPLAIN_LABEL, IGNORED_LABEL
from tinker.types._values import np
from tinker.types.model_input import Datum, LossFnInputValue, ModelInput
from tinker.types.results import SampledSequence, SampleResponse
from tinker.types.tensor_data import rectangular
from tinker_records import suggest_argument

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "examples_from_messages",
    "from_completion",
    "from_messages",
    "from_sample",
    "from_tokens",
    "prompt_from_messages",
]


@suggest_argument
def from_tokens(tokens: Sequence[int], weights: Sequence[float] | None = None) -> Datum:
    """Make the example for ``cross_entropy`` of a text, whose first token is only read.

    Args:
        tokens: The tokens of the text, such as a prompt followed by its answer: a list, numpy array
            or torch tensor.
        weights: How much each of the tokens counts in the loss: usually 0 for the prompt and 1 for
            the answer. None means 1 for every token.

    Returns:
        The example, with ``target_tokens`` and, unless they are None, ``weights``.

    Raises:
        ValueError: There are fewer than two tokens, another number of weights, or weights of -100,
            which are labels.

    >>> prompt, answer = [5, 17], [3, 8]
    >>> datum = from_tokens(prompt + answer, [0.0, 0.0, 1.0, 1.0])
    >>> (
    ...     datum.model_input.to_ints(),
    ...     datum.loss_fn_inputs["target_tokens"].tolist(),
    ...     datum.loss_fn_inputs["weights"].tolist(),
    ... )
    ([5, 17, 3], [17, 3, 8], [0.0, 1.0, 1.0])
    """
    read = ModelInput.from_ints(tokens).to_ints()
    if len(read) < 2:
        raise ValueError(
            f"an example needs at least two tokens, one to read and one to predict; got {len(read)}"
        )
    inputs: dict[str, LossFnInputValue] = {"target_tokens": read[1:]}
    if weights is not None:
        numbers = rectangular(list(weights), "weights")
        if numbers.shape != (len(read),):
            raise ValueError(
                "there must be one weight for each token, got "
                f"{len(weights)} for {len(read)} tokens"
            )
        if IGNORED_LABEL in numbers:
            raise ValueError(f"a weight is {EXPLAIN_LABEL}")
        inputs["weights"] = numbers[1:].astype(np.float32)
    return Datum(ModelInput.from_ints(read[:-1]), inputs)


@suggest_argument
def from_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[ChatTurn],
    *,
    tools: Sequence[object] | None = None,
    first: int = 0,
    max_length: int | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Datum:
    """Make the example for ``cross_entropy`` of a chat. The answers of the assistant are learned,
    the rest is only read.

    Messages are encoded with the tokenizer's chat template. If it has none, each is a line such as
    ``User: Hello``, and the chat ends with the end-of-text token. Each answer follows the tokens
    that :func:`prompt_from_messages` makes of the messages before it.

    Args:
        tokenizer: The tokenizer of the model, from ``get_tokenizer()``.
        messages: Dictionaries with ``role`` and ``content``, and what else the chat template reads.
            A content is text, or a list of parts of text, which are joined. The arguments of tool
            calls are objects or JSON. An answer with ``"weight": 0`` is only read, as are those
            with ``"train": False`` or ``"trainable": False``.
        tools: The descriptions of the tools that the model may call; None if there are none.
        first: The index of the first message that may be learned; -1 is the last message. Answers
            before it are only read.
        max_length: Where a longer chat is cut, in tokens; None means nowhere.
        chat_template_kwargs: Options of the chat template, such as ``{"enable_thinking": False}``.

    Returns:
        The example, with ``target_tokens`` and ``weights``.

    Raises:
        TypeError: ``tokenizer`` is something else.
        ValueError: A message cannot be read, the chat template refuses the messages or writes
            nothing of an answer, no message from ``first`` on is the assistant's, or the chat
            template changes earlier messages when later ones come, so that only
            :func:`examples_from_messages` can make examples.

    >>> import tinker
    >>> tokenizer = tinker.get_tokenizer("tinker/babble")
    >>> messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    >>> datum = from_messages(tokenizer, messages)
    >>> tokens, weights = (
    ...     datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights")
    ... )
    >>> tokenizer.decode(tokens[weights == 1], skip_special_tokens=True)
    ' 4\\n'
    """
    _check_tokenizer(tokenizer)
    return _to_datum(
        encode_examples(tokenizer, messages, tools, chat_template_kwargs, first=first), max_length
    )


@suggest_argument
def examples_from_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[ChatTurn],
    *,
    tools: Sequence[object] | None = None,
    first: int = 0,
    max_length: int | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> list[Datum]:
    """Make the examples for ``cross_entropy`` of a chat: one, or several where the chat template
    changes earlier messages.

    Templates of models that think leave the thoughts of earlier answers out. Such a chat has an
    example for each answer, with what the model reads when it gives that answer; answers that
    follow each other unchanged share one.

    Args:
        tokenizer: The tokenizer of the model, from ``get_tokenizer()``.
        messages: The chat, as for :func:`from_messages`.
        tools: The descriptions of the tools that the model may call; None if there are none.
        first: The index of the first message that may be learned; -1 is the last message. Answers
            before it are only read.
        max_length: Where a longer example is cut, in tokens; None means nowhere. An example of
            which nothing is left to learn is left out.
        chat_template_kwargs: Options of the chat template, such as ``{"enable_thinking": False}``.

    Returns:
        The examples, with ``target_tokens`` and ``weights``.

    Raises:
        TypeError: ``tokenizer`` is something else.
        ValueError: A message cannot be read, the chat template refuses the messages or writes
            nothing of an answer, or no message from ``first`` on is the assistant's.

    >>> import tinker
    >>> tokenizer = tinker.get_tokenizer("tinker/babble")
    >>> messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    >>> len(examples_from_messages(tokenizer, messages))
    1
    """
    _check_tokenizer(tokenizer)
    encoded = encode_examples(tokenizer, messages, tools, chat_template_kwargs, first=first)
    _warn_of(encoded.unwritten)
    kept = (
        example
        for example in encoded.examples
        if len(encoded.examples) == 1 or any(example.weights[1:max_length])
    )
    return [from_tokens(tokens[:max_length], weights[:max_length]) for tokens, weights in kept]


@suggest_argument
def prompt_from_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[ChatTurn],
    *,
    tools: Sequence[object] | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> ModelInput:
    """Make the prompt to sample the next message of a chat, which ends with the start of the
    assistant's answer.

    Args:
        tokenizer: The tokenizer of the model, from ``get_tokenizer()``.
        messages: The chat so far, as for :func:`from_messages`.
        tools: The descriptions of the tools that the model may call; None if there are none.
        chat_template_kwargs: Options of the chat template, such as ``{"enable_thinking": False}``.

    Returns:
        The prompt, in the format of the examples that :func:`from_messages` makes.

    Raises:
        TypeError: ``tokenizer`` is something else.
        ValueError: A message cannot be read, or the chat template refuses the messages.

    >>> import tinker
    >>> tokenizer = tinker.get_tokenizer("tinker/babble")
    >>> prompt = prompt_from_messages(tokenizer, [{"role": "user", "content": "2 + 2?"}])
    >>> tokenizer.decode(prompt.to_ints())
    'User: 2 + 2?\\nAssistant:'
    """
    _check_tokenizer(tokenizer)
    tokens, unwritten = encode_prompt(tokenizer, messages, tools, chat_template_kwargs)
    _warn_of(unwritten)
    return ModelInput.from_ints(tokens)


@suggest_argument
def from_completion(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[ChatTurn],
    completion: str | Sequence[ChatTurn],
    *,
    tools: Sequence[object] | None = None,
    max_length: int | None = None,
    chat_template_kwargs: Mapping[str, object] | None = None,
) -> Datum:
    """Make the example for ``cross_entropy`` of a prompt, which is only read, and its completion,
    which is learned.

    Args:
        tokenizer: The tokenizer of the model, from ``get_tokenizer()``.
        prompt: The text of the prompt, or its messages as for :func:`from_messages`. The
            end-of-text token that some tokenizers append is taken off.
        completion: The same of the completion. A text usually begins with a space. The end-of-text
            token is added to it.
        tools: The descriptions of the tools that the model may call; None if there are none. Only
            for messages.
        max_length: Where a longer example is cut, in tokens; None means nowhere.
        chat_template_kwargs: Options of the chat template, such as ``{"enable_thinking": False}``.
            Only for messages.

    Returns:
        The example, with ``target_tokens`` and ``weights``.

    Raises:
        TypeError: ``tokenizer`` is something else.
        ValueError: Prompt and completion are not both texts or both messages, or the completion is
            empty.

    >>> import tinker
    >>> tokenizer = tinker.get_tokenizer("tinker/babble")
    >>> datum = from_completion(tokenizer, "2 + 2 =", " 4")
    >>> tokens, weights = (
    ...     datum.loss_fn_inputs[name].to_numpy() for name in ("target_tokens", "weights")
    ... )
    >>> tokenizer.decode(tokens[weights == 1], skip_special_tokens=True)
    ' 4'
    """
    _check_tokenizer(tokenizer)
    return _to_datum(
        encode_completion(tokenizer, prompt, completion, tools, chat_template_kwargs), max_length
    )


def _to_datum(encoded: Encoded, max_length: int | None) -> Datum:
    tokens, weights = take_one(encoded)
    _warn_of(encoded.unwritten)
    return from_tokens(tokens[:max_length], weights[:max_length])


def _warn_of(unwritten: Iterable[Unwritten]) -> None:
    for message in dict.fromkeys(one.message for one in unwritten):
        warn(message)


def _check_tokenizer(tokenizer: object) -> None:
    if isinstance(tokenizer, str) or not hasattr(tokenizer, "encode"):
        where = (
            "get_tokenizer() of a training or sampling client, or tinker.get_tokenizer(model_name)"
        )
        raise TypeError(
            f"tokenizer must be a tokenizer, got {type(tokenizer).__name__}: use {where}"
        )


@suggest_argument
def from_sample(
    prompt: ModelInput | Sequence[int],
    sequence: SampledSequence,
    advantage: float | Sequence[float],
) -> Datum:
    """Make the example of a sampled answer for a policy loss such as ``importance_sampling`` or
    ``ppo``.

    Args:
        prompt: The tokens that the answer was sampled from, or a ModelInput of them. They are only
            read.
        sequence: The answer, one of ``sampler.sample(...).result().sequences``.
        advantage: How much better the answer is than expected, such as its reward minus the mean of
            its group: one number, or one for each token of the answer.

    Returns:
        The example, with ``target_tokens``, ``logprobs`` and ``advantages``; the last two are 0 in
        the prompt.

    Raises:
        TypeError: ``sequence`` is not a sampled sequence.
        ValueError: The prompt is empty or not text, the answer has no log-probabilities, or there
            is another number of advantages or one that is not finite.

    >>> answer = SampledSequence(stop_reason="stop", tokens=[3, 8], logprobs=[-0.5, -0.25])
    >>> datum = from_sample([5, 17], answer, advantage=2.0)
    >>> datum.loss_fn_inputs["target_tokens"].tolist(), datum.loss_fn_inputs["advantages"].tolist()
    ([17, 3, 8], [0.0, 2.0, 2.0])
    """
    try:
        read = (
            prompt if isinstance(prompt, ModelInput) else ModelInput.from_ints(prompt)
        ).to_ints()
    except ValueError as error:
        raise ValueError(f"prompt: {error}") from None
    if isinstance(sequence, SampleResponse):
        raise TypeError(
            "sequence must be a SampledSequence, got SampleResponse: use one of response.sequences"
        )
    check_kind("sequence", sequence, SampledSequence)
    count = len(sequence.tokens)
    if not read or sequence.logprobs_np is None:
        raise ValueError(
            "the prompt is empty"
            if not read
            else "the sequence has no logprobs, which policy losses need"
        )
    given = np.asarray(advantage)
    if given.ndim and len(given) != count:
        raise ValueError(
            f"advantage must be one number, or one for each of the {count} tokens, got {len(given)}"
        )
    if given.dtype.kind not in "iufb" or not np.isfinite(given).all():
        raise ValueError(
            f"advantage must be one finite number, or one for each token, got {advantage!r}"
        )
    unlearned = np.zeros(len(read) - 1, np.float32)
    tokens = [*read, *sequence.tokens]
    inputs: dict[str, LossFnInputValue] = {
        "target_tokens": tokens[1:],
        "logprobs": np.append(unlearned, sequence.logprobs_np),
        "advantages": np.append(unlearned, np.broadcast_to(given.astype(np.float32), (count,))),
    }
    return Datum(ModelInput.from_ints(tokens[:-1]), inputs)
