"""The tokenizers of commands: loaded from their files, or by transformers, whose import alone takes seconds."""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinker.cli.errors import CommandFailed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tinker._tokenizers import TokenizerSource
    from tinker.sampling_client import SamplingClient

_CACHED_FILES = ("tokenizer_config.json", "tokenizer.json", "config.json")  # one of which a tokenizer has
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
# What a tokenizer_config.json may say without changing what tokenizer.json means, and the only values of some.
_SETTINGS: dict[str, tuple[object, ...]] = {
    "clean_up_tokenization_spaces": (False,),
    "tokenizer_class": ("PreTrainedTokenizerFast", "TokenizersBackend"),
}
_HARMLESS = {*_NAMED_TOKENS, *_SETTINGS, "backend", "chat_template", "is_local", "model_input_names", "model_max_length"}
_MODEL_TYPES = ("llama", None)  # for which transformers makes no class of its own of such a tokenizer
_OTHER_FILES = ("special_tokens_map.json", "added_tokens.json")


def load_tokenizer(named: TokenizerSource | str) -> Any:
    """Load a tokenizer. CommandFailed for one that is neither here nor can be fetched; the hub is asked once."""
    from tinker._tokenizers import find_absence, is_of_hub, load, resolve

    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)  # each attempt that its client repeats
    source = resolve("", named) if isinstance(named, str) else named
    if is_of_hub(source) and importlib.util.find_spec("huggingface_hub") is not None:
        absence = find_absence(source.name, _CACHED_FILES, kind="tokenizer", revision=source.revision)
        if absence is not None:
            raise CommandFailed(f"cannot load the tokenizer {source.name!r}: {absence}; give a directory")
    return load(source)


def find_tokenizer(sampler: SamplingClient, named: str | None) -> Any:
    """Return the tokenizer of the name given, else that of the model, from its files if they are all there is to it.

    CommandFailed as from :func:`load_tokenizer`.
    """
    from tinker._tokenizers import load, resolve

    source = resolve("", named) if named else sampler._sampler.tokenizer().result()  # pyright: ignore[reportPrivateUsage]
    return read_tokenizer(source) or (load_tokenizer(source) if named else load(source))


class FileTokenizer:
    """Encodes and decodes as the tokenizer of transformers does, which has the other attributes and is loaded for them."""

    def __init__(self, source: TokenizerSource, tokenizer: Tokenizer, special: dict[str, int], has_template: bool) -> None:
        self._source, self._tokenizer, self._has_template = source, tokenizer, has_template
        self._special = special  # ids by the token's name, such as eos_token

    @property
    def all_special_ids(self) -> list[int]:
        return list(dict.fromkeys(self._special.values()))

    @property
    def eos_token(self) -> str | None:
        return self._tokenizer.id_to_token(self._special["eos_token"]) if "eos_token" in self._special else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    @property
    def chat_template(self) -> object:
        return self.__getattr__("chat_template") if self._has_template else None

    def __getattr__(self, name: str) -> Any:
        from tinker._tokenizers import load

        return getattr(load(self._source), name)


def read_tokenizer(source: TokenizerSource) -> FileTokenizer | None:
    """Read a tokenizer from its directory; None where there is more to it than what its tokenizer.json says."""
    folder = Path(source.name)
    if importlib.util.find_spec("tokenizers") is None or any((folder / name).exists() for name in _OTHER_FILES):
        return None
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
        if not _is_plain(settings, _model_type(folder)):
            return None
        tokenizer = _open(folder / "tokenizer.json")
    except Exception:  # noqa: BLE001 - tokenizers raises Exception; transformers says what is wrong with the files
        return None
    special = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    named = {name: settings[name] for name in _NAMED_TOKENS if settings.get(name) is not None}
    if not all(isinstance(token, str) and token in special for token in named.values()):
        return None
    has_template = "chat_template" in settings or any(folder.glob("*chat_template*"))
    return FileTokenizer(source, tokenizer, {name: special[token] for name, token in named.items()}, has_template)


def _is_plain(settings: dict[str, object], model_type: object) -> bool:
    values = all(settings.get(name) in allowed for name, allowed in _SETTINGS.items())
    return values and settings.keys() <= _HARMLESS and model_type in _MODEL_TYPES


def _model_type(folder: Path) -> object:
    file = folder / "config.json"
    return json.loads(file.read_bytes()).get("model_type", "") if file.exists() else None


def _open(file: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
