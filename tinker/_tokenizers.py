"""Tokenizers: which one a model has, as data; loaded once in a process, shared by all clients."""

from __future__ import annotations

import importlib
import logging
import re
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tinker._basics.installation import install_command
from tinker.errors import TinkerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PACKAGED = str(Path(__file__).with_name("local") / "base_model")

# Models whose tokenizer is somewhere else. Those of Llama 3 need a licence click on the hub; the
# copy does not.
_ELSEWHERE_BY_PREFIX = {
    "meta-llama/Llama-3": "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
}
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
    """Where a tokenizer comes from: an id of the hub or a directory, and the commit when it is
    code.
    """

    name: str
    revision: str | None = None


_loaded: dict[TokenizerSource, PreTrainedTokenizerBase] = {}
_locks: dict[TokenizerSource, threading.Lock] = {}
_registry = threading.Lock()


def resolve(model_name: str, tokenizer_id: str | None) -> TokenizerSource:
    """Return the tokenizer to load: the one the server named, else the model's, without its
    revision after ``:``.

    TinkerError where the server's word is neither a directory here nor possibly a name on the hub.
    """
    name = tokenizer_id or model_name
    if name and Path(name).is_dir():
        return TokenizerSource(str(Path(name).resolve()))
    name = name.partition(":")[0]
    if not tokenizer_id:
        name = _of_model(name)
    name = _ELSEWHERE.get(name, name)
    if tokenizer_id and not (
        _HUB_NAME.fullmatch(name) or Path(name).is_dir() or name.startswith(_IN_A_PACKAGE)
    ):
        raise TinkerError(
            f"the tokenizer {tokenizer_id!r} is neither a local folder nor a name "
            "on the Hugging Face Hub. "
            "Copy the tokenizer's files to this machine and load them with "
            "transformers.AutoTokenizer.from_pretrained"
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
    """Return the tokenizer of a model, by the model's name; no server is asked. It is loaded once
    in a process.

    Clients know more than a name: where a server says which tokenizer its model has,
    ``client.get_tokenizer()`` is that one.

    Args:
        model_name: The name of a base model, such as ``Qwen/Qwen3-8B``, or a directory with the
            tokenizer's files.

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
    """Load a tokenizer; text is resolved as the server's name for one. Threads that want the same
    wait for one load.

    ImportError without transformers; RuntimeError for the models whose tokenizer is in another
    package that is absent.
    """
    source = resolve("", source) if isinstance(source, str) else source
    with _registry:
        lock = _locks.setdefault(source, threading.Lock())
    with lock:
        if source not in _loaded:
            _loaded[source] = (
                _of_package(source.name)
                if source.name.startswith(_IN_A_PACKAGE)
                else _from_hub(source)
            )
        return _loaded[source]


def is_of_hub(source: TokenizerSource) -> bool:
    """Return whether a tokenizer comes from the hub: not in a directory here, and in no package."""
    return not Path(source.name).is_dir() and not source.name.startswith(_IN_A_PACKAGE)


def find_loaded(source: TokenizerSource) -> PreTrainedTokenizerBase | None:
    """Return a tokenizer that has been loaded."""
    return _loaded.get(source)


def encode(get_tokenizer: Callable[[], Any], text: str, add_special_tokens: bool) -> list[int]:
    """Return the tokens of ``text`` as a list of ints. TypeError for anything else, before the
    tokenizer is asked for.
    """
    __tracebackhide__ = True
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"text must be a string, got {type(text).__name__}")
    return list(get_tokenizer().encode(text, add_special_tokens=add_special_tokens))


def decode(
    get_tokenizer: Callable[[], Any], tokens: Sequence[int], skip_special_tokens: bool
) -> str:
    """Return the text of ``tokens``, from a list or an array. TypeError for anything else, as of
    ``encode``.
    """
    __tracebackhide__ = True
    if isinstance(tokens, (str, Mapping)) or not isinstance(tokens, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"tokens must be a list of token ids, got {type(tokens).__name__}")
    return str(get_tokenizer().decode(list(tokens), skip_special_tokens=skip_special_tokens))


def _from_hub(source: TokenizerSource) -> PreTrainedTokenizerBase:
    # tokenizers need none
    logging.getLogger("transformers").addFilter(lambda record: "PyTorch" not in record.getMessage())
    return open_tokenizer(source.name, source.revision)


@contextmanager
def refuse_code(name: str) -> Generator[None]:
    """Raise ValueError, in one sentence, where transformers would run Python code of this folder or
    repository.
    """
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        fault = (
            f"{name} needs Python code of its own, which is never run here; only kinds that "
            "transformers knows are loaded"
        )
        raise ValueError(fault) from None


def open_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load a tokenizer; code of its own runs only where a commit is given.

    ImportError without transformers; ValueError where there is no tokenizer.
    """
    absent = ImportError(f"get_tokenizer needs transformers: {install_command('tokenizers')}")
    automatic = _module("transformers", absent).AutoTokenizer
    pinned = {} if revision is None else {"revision": revision}
    try:
        with refuse_code(name):
            found = automatic.from_pretrained(
                name, trust_remote_code=revision is not None, **pinned
            )
    except ValueError as error:
        if "backend tokenizer" not in str(error):
            raise
        found = None
    # the latter transformers made of nothing
    if found is None or len(found) <= len(found.all_special_ids):
        where = "put tokenizer.json there, or tokenizer.model and install sentencepiece"
        raise ValueError(f"{name} has no tokenizer that can be read: {where}")
    return cast("PreTrainedTokenizerBase", found)


def _of_package(name: str) -> PreTrainedTokenizerBase:
    advice = "Install tml_tokenizers, or create prompts with tml-renderers from PyPI"
    absent = RuntimeError(f"the tokenizer of {name} is not on the Hugging Face Hub. {advice}")
    found = _module("tml_tokenizers.tinker_tokenizers", absent).get_tinker_tokenizer(name)
    return (
        _from_hub(TokenizerSource(name))
        if found is None
        else cast("PreTrainedTokenizerBase", found)
    )


def _module(name: str, absent: Exception) -> Any:
    """Return the module; ``absent`` is raised where it is not installed, its own error where it is
    broken.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            raise
        raise absent from None


# ---------------------------------------------------- what the hub has, of models and of tokenizers

_PROBE_SECONDS = 10.0
# of httpx, requests and Python
_NO_CONNECTION = ("ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError")


def find_absence(
    name: str, files: Sequence[str], *, kind: str, revision: str | None = None
) -> str | None:
    """Return why a repository cannot be loaded; None where it can, or where only loading it will
    tell.

    This takes one request, as the hub's own client retries for half a minute.

    One of the ``files`` is in the cache where the repository is. ``kind`` says what it is.
    ImportError without ``huggingface_hub``.
    """
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    hub: Any = huggingface_hub
    try:
        if not any(
            isinstance(hub.try_to_load_from_cache(name, file, revision=revision), str)
            for file in files
        ):
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
