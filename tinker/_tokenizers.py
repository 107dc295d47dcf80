"""Tokenizers: which one a model has, as data; loaded once in a process, shared by all clients."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from tinker._installation import install_command
from tinker.errors import TinkerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatTurn: TypeAlias = Mapping[str, Any]
LARGEST_WEIGHT = 3.4e38  # what float32 has room for
_PACKAGED = str(Path(__file__).with_name("local") / "base_model")

# Models whose tokenizer is somewhere else. Those of Llama 3 need a licence click on the hub; the copy does not.
_ELSEWHERE_BY_PREFIX = {"meta-llama/Llama-3": "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"}
_ELSEWHERE = {
    "tinker/babble": _PACKAGED,
    "tinker/toy": _PACKAGED,
    "moonshotai/Kimi-K2.5-Text-Only": "moonshotai/Kimi-K2.5",
}
# Tokenizers that are code; what runs is these commits only.
_PINNED = {
    "moonshotai/Kimi-K2-Thinking": "612681931a8c906ddb349f8ad0f582cb552189cd",
    "moonshotai/Kimi-K2.5": "4d01dfe0332d63057c186e0b262165819efb6611",
    "moonshotai/Kimi-K2.6": "b5aabbfb20227ed42becbf5541dbffd213942c58",
    "moonshotai/Kimi-K3": "f831ab66814297da540d832a5235f8e904f29d06",
}
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Owners of models whose tokenizers are on no hub but in a package.
_IN_A_PACKAGE = ("TML/", "thinkingmachines/")


class TokenizerSource(NamedTuple):
    """Where a tokenizer comes from: an id of the hub or a directory, and the commit when it is code."""

    name: str
    revision: str | None = None


_loaded: dict[TokenizerSource, PreTrainedTokenizerBase] = {}
_locks: dict[TokenizerSource, threading.Lock] = {}
_registry = threading.Lock()


def write_plain_chat(messages: Sequence[ChatTurn], *, is_prompt: bool = True) -> str:
    """Return a chat for a model without a chat template: a line for each message, and in a prompt the start of the answer.

    >>> write_plain_chat([{"role": "user", "content": "Hello"}])
    'User: Hello\\nAssistant:'
    """
    lines = [f"{message['role'].capitalize()}: {message['content']}\n" for message in messages]
    return "".join(lines) + ("Assistant:" if is_prompt else "")


def has_template(tokenizer: Any) -> bool:
    """Return whether there is a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


# What was given instead of a list of messages, by one of its keys.
_NOT_A_LIST = {
    "messages": """: take its ["messages"]""",
    "prompt": """: use tinker.data.from_completion(tokenizer, row["prompt"], row["completion"])""",
    "role": ": put the message in a list",
}


def read_messages(messages: object) -> list[dict[str, Any]]:
    """Return messages whose contents are texts, where parts are joined. Raises ValueError for the first that cannot be read."""
    kind = type(messages)
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Iterable):
        fields = cast("Mapping[str, object]", messages if isinstance(messages, Mapping) else {})
        advice = next((text for name, text in _NOT_A_LIST.items() if name in fields), "")
        raise ValueError(f'"messages" must be a list, got {kind.__name__}{advice}')
    read = [_read_message(position, message) for position, message in enumerate(cast("Iterable[object]", messages))]
    if not read:
        raise ValueError('"messages" is empty')
    return read


def _read_message(position: int, message: object) -> dict[str, Any]:
    if isinstance(message, list):
        raise ValueError(f"message {position} is a list; if it is a chat of its own, make an example of each chat")
    fields = dict(cast("Mapping[str, Any]", message)) if isinstance(message, Mapping) else {}
    if not isinstance(fields.get("role"), str):
        got = f"; it has {', '.join(fields)}" if fields else ""
        of_sharegpt = ': rename "from" to "role" (human to user, gpt to assistant), and "value" to "content"'
        advice = of_sharegpt if "from" in fields else '; a message is {"role": "user", "content": "Hi"}'
        raise ValueError(f'message {position} has no "role"{got}{advice}')
    content = fields.get("content")
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in parts):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"message {position} has parts that are not text; for images, see docs/vision.md")
        content = "".join(str(part.get("text", "")) for part in parts)
    if not isinstance(content, str) and not (content is None and fields.get("tool_calls")):
        raise ValueError(f'message {position}: "content" must be text')
    return {**fields, "content": content}


_PLAIN_ROLES = "system, developer, user, assistant, tool"


def encode_chat(
    tokenizer: Any, messages: Sequence[ChatTurn], tools: Sequence[object] | None = None, *, is_prompt: bool
) -> list[int]:
    """Encode messages with the chat template, or without one as a line for each. A prompt ends with the start of an answer."""
    if not has_template(tokenizer):
        if tools or any(message.get("tool_calls") for message in messages):
            raise ValueError("tools and tool calls need a tokenizer with a chat template; this one has none")
        for position, message in enumerate(messages):
            if (role := message["role"]) not in _PLAIN_ROLES.split(", "):
                raise ValueError(f'message {position} has the role "{role}"; without a chat template use {_PLAIN_ROLES}')
        return list(tokenizer.encode(write_plain_chat(messages, is_prompt=is_prompt)))
    options = {"tools": list(tools)} if tools else {}
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=is_prompt, **options)
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def encode_answers(
    tokenizer: Any, messages: Sequence[ChatTurn], tools: Sequence[object] | None = None, first: int = 0
) -> tuple[list[int], list[float]]:
    """Encode a chat with a weight of 1 for the tokens that the assistant adds from message ``first`` on, and 0 for the others.

    A message may have its own weight. ValueError without such a message, and if the chat template changes earlier messages when
    later ones come.
    """
    messages = read_messages(messages)
    answers = [at for at in range(len(messages))[first:] if messages[at]["role"] == "assistant"]
    if not answers:
        found = ", ".join(dict.fromkeys(str(message["role"]) for message in messages[first:]))
        raise ValueError(f'no message has the role "assistant", so there is nothing to learn; the roles are {found}')
    tokens: list[int] = []
    weights: list[float] = []
    for at in answers:
        _extend(tokens, weights, encode_chat(tokenizer, messages[:at], tools, is_prompt=True), 0.0)
        weight = _weight(at, messages[at])
        _extend(tokens, weights, encode_chat(tokenizer, messages[: at + 1], tools, is_prompt=False), weight)
    if not has_template(tokenizer):
        _extend(tokens, weights, with_end(tokenizer, tokens), weights[-1])
    return tokens, weights


def _weight(position: int, message: Mapping[str, object]) -> float:
    """Return how much an answer counts: its ``weight``, as OpenAI has it, or whether it is learned; else 1."""
    name = next((name for name in ("weight", "train", "trainable") if message.get(name) is not None), None)
    weight = 1 if name is None else message[name]
    if not isinstance(weight, (int, float)) or not abs(weight) <= LARGEST_WEIGHT:
        raise ValueError(f'message {position} has the {name} {weight!r:.9}; it is a finite number, such as 0 for "not learned"')
    return float(weight)


def encode_completion(
    tokenizer: Any, prompt: object, completion: object, tools: Sequence[object] | None = None, *, name: str = "completion"
) -> tuple[list[int], list[float]]:
    """Encode a prompt and its completion, texts or messages, with a weight of 1 for the tokens of the completion.

    ValueError for anything else; ``name`` is what the completion is called there.
    """
    kinds = [type(prompt), type(completion)]
    if kinds not in ([str, str], [list, list]):
        got = " and ".join("null" if one is type(None) else one.__name__ for one in kinds)
        raise ValueError(f"the prompt and the {name} must both be strings, or both lists of messages, got {got}")
    if not completion:
        raise ValueError(f"the {name} is empty")
    if list in kinds:
        asked, answered = cast("list[list[ChatTurn]]", [prompt, completion])
        return encode_answers(tokenizer, asked + answered, tools, len(asked))
    before: list[int] = tokenizer.encode(prompt)
    after = with_end(tokenizer, tokenizer.encode(completion, add_special_tokens=False))
    return before + after, [0.0] * len(before) + [1.0] * len(after)


def _extend(tokens: list[int], weights: list[float], longer: list[int], weight: float) -> None:
    if longer[: len(tokens)] != tokens:
        raise ValueError("the chat template changes earlier messages when later ones come; split it into single answers")
    weights += [weight] * (len(longer) - len(tokens))
    tokens[:] = longer


def with_end(tokenizer: Any, tokens: list[int]) -> list[int]:
    """Append the token that ends a text, so that the model learns to stop."""
    end: int | None = tokenizer.eos_token_id
    return tokens if end is None or tokens[-1:] == [end] else [*tokens, end]


def resolve(model_name: str, tokenizer_id: str | None) -> TokenizerSource:
    """Return the tokenizer to load: the one the server named, else the model's, without its revision after ``:``.

    TinkerError where the server's word is neither a directory here nor possibly a name on the hub.
    """
    name = tokenizer_id or model_name
    if name and Path(name).is_dir():
        return TokenizerSource(str(Path(name).resolve()))
    name = name.partition(":")[0]
    if not tokenizer_id:
        name = _of_model(name)
    name = _ELSEWHERE.get(name, name)
    if tokenizer_id and not (_HUB_NAME.fullmatch(name) or Path(name).is_dir() or name.startswith(_IN_A_PACKAGE)):
        raise TinkerError(
            f"the tokenizer {tokenizer_id!r} is neither a local folder nor a name on the Hugging Face Hub. "
            "Copy the tokenizer's files to this machine and load them with transformers.AutoTokenizer.from_pretrained"
        )
    return TokenizerSource(name, _PINNED.get(name))


def _of_model(name: str) -> str:
    for prefix, elsewhere in _ELSEWHERE_BY_PREFIX.items():
        if name.startswith(prefix):
            return elsewhere
    owner, _, rest = name.partition("/")
    model, _, variant = rest.partition("/")
    return f"{owner}/{model}" if owner and variant and "/" not in variant else name


def get_tokenizer(model_name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model, by the model's name; no server is asked. It is loaded once in a process.

    Clients know more than a name: where a server says which tokenizer its model has, ``client.get_tokenizer()`` is that one.

    Args:
        model_name: The name of a base model, such as ``Qwen/Qwen3-8B``, or a directory with the tokenizer's files.

    Returns:
        The tokenizer, of transformers.

    Raises:
        ImportError: transformers is not installed.

    >>> import tinker
    >>> tokenizer = tinker.get_tokenizer("tinker/babble")
    >>> tokenizer.decode(tokenizer.encode("a tiny model"))
    'a tiny model'
    """
    if not isinstance(model_name, str) or not model_name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"model_name must be the name of a model, got {model_name!r}")
    return load(resolve(model_name, None))


def load(source: TokenizerSource | str) -> PreTrainedTokenizerBase:
    """Load a tokenizer; text is resolved as the server's name for one. Threads that want the same wait for one load.

    ImportError without transformers; RuntimeError for the models whose tokenizer is in another package that is absent.
    """
    source = resolve("", source) if isinstance(source, str) else source
    with _registry:
        lock = _locks.setdefault(source, threading.Lock())
    with lock:
        if source not in _loaded:
            _loaded[source] = _of_package(source.name) if source.name.startswith(_IN_A_PACKAGE) else _from_hub(source)
        return _loaded[source]


def is_of_hub(source: TokenizerSource) -> bool:
    """Return whether a tokenizer comes from the hub: not in a directory here, and in no package."""
    return not Path(source.name).is_dir() and not source.name.startswith(_IN_A_PACKAGE)


def find_loaded(source: TokenizerSource) -> PreTrainedTokenizerBase | None:
    """Return a tokenizer that has been loaded."""
    return _loaded.get(source)


def encode(get_tokenizer: Callable[[], Any], text: str, add_special_tokens: bool) -> list[int]:
    """Return the tokens of ``text`` as a list of ints. TypeError for anything else, before the tokenizer is asked for."""
    __tracebackhide__ = True
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    return list(get_tokenizer().encode(text, add_special_tokens=add_special_tokens))


def decode(get_tokenizer: Callable[[], Any], tokens: Sequence[int], skip_special_tokens: bool) -> str:
    """Return the text of ``tokens``, from a list or an array. TypeError for anything else, as of ``encode``."""
    __tracebackhide__ = True
    if isinstance(tokens, (str, Mapping)) or not isinstance(tokens, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"tokens must be a list of token ids, got {type(tokens).__name__}")
    return str(get_tokenizer().decode(list(tokens), skip_special_tokens=skip_special_tokens))


def _from_hub(source: TokenizerSource) -> PreTrainedTokenizerBase:
    absent = ImportError(f"get_tokenizer needs transformers: {install_command('tokenizers')}")
    automatic = _module("transformers", absent).AutoTokenizer
    pinned = {} if source.revision is None else {"revision": source.revision, "trust_remote_code": True}
    return cast("PreTrainedTokenizerBase", automatic.from_pretrained(source.name, **pinned))


def _of_package(name: str) -> PreTrainedTokenizerBase:
    advice = "Install tml_tokenizers, or create prompts with tml-renderers from PyPI"
    absent = RuntimeError(f"the tokenizer of {name} is not on the Hugging Face Hub. {advice}")
    found = _module("tml_tokenizers.tinker_tokenizers", absent).get_tinker_tokenizer(name)
    return _from_hub(TokenizerSource(name)) if found is None else cast("PreTrainedTokenizerBase", found)


def _module(name: str, absent: Exception) -> Any:
    """Return the module; ``absent`` is raised where it is not installed, its own error where it is broken."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            raise
        raise absent from None


# -------------------------------------------------------------------------- what the hub has, of models and of tokenizers

_PROBE_SECONDS = 10.0
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError")  # of httpx, requests and Python


def find_absence(name: str, files: Sequence[str], *, kind: str, revision: str | None = None) -> str | None:
    """Return why a repository cannot be loaded; None where it can, or where only loading it will tell.

    This takes one request, as the hub's own client retries for half a minute.

    One of the ``files`` is in the cache where the repository is. ``kind`` says what it is.
    ImportError without ``huggingface_hub``.
    """
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    hub: Any = huggingface_hub
    try:
        if not any(isinstance(hub.try_to_load_from_cache(name, file, revision=revision), str) for file in files):
            hub.HfApi().model_info(name, timeout=_PROBE_SECONDS)
    except HFValidationError:
        return f"it is neither a directory nor a name on {_host()}"
    except RepositoryNotFoundError:
        return f"{_host()} has no such {kind}, or it is private"
    except Exception as error:  # noqa: BLE001 - its clients raise what they like; only loading will tell
        if any(one.__name__ in _NO_CONNECTION for one in type(error).__mro__):
            return describe_offline()
    return None


def describe_offline() -> str:
    """Say that the hub cannot be reached."""
    return f"no connection to {_host()}, and it is not in the cache"


def _host() -> str:
    from huggingface_hub.constants import ENDPOINT

    return ENDPOINT.partition("://")[2]
