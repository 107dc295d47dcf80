"""Read a local adapter from its files, and check it before an upload or a merge.

The rank is read from ``adapter_config.json``, the modules from the header of
``adapter_model.safetensors``. The weights are not read. Blocks; not for the loop thread.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import msgspec
from tinker_wire import models

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
_PICKLED = "adapter_model.bin"
_MAX_CONFIG_NBYTES = 1 << 20
_MAX_HEADER_NBYTES = 100 << 20
#: What of PEFT's LoRA no server takes; absent or empty is fine.
_REFUSED = (
    *(
        "use_dora",
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "lora_bias",
        "trainable_token_indices",
    ),
    *("fan_in_fan_out", "megatron_config"),
)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
HEADS = frozenset({"lm_head", "embed_out", "output_layer"})


@attrs.frozen(kw_only=True)
class LocalAdapter:
    """A folder with the files of an adapter, and what it is announced as."""

    folder: Path
    base_model: str
    lora_config: models.LoraConfig

    def find(self, name: str) -> Path | None:
        """Return the file of a name that the server asks for; None when it is not in the folder."""
        place = self.folder / name
        return (
            place
            if place.is_file() and place.resolve().is_relative_to(self.folder.resolve())
            else None
        )


def read_adapter(
    folder: Path, base_model: str | None, lora_config: models.LoraConfig | None
) -> LocalAdapter:
    """Read what a folder holds. Without PEFT's files both other arguments must say it, and nothing
    is checked.

    FileNotFoundError, NotADirectoryError or ValueError, naming the file and the field, for what
    cannot be uploaded.
    """
    if not folder.exists():
        raise FileNotFoundError(f"the folder {folder} does not exist")
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder; pass the one that contains {CONFIG}")
    if not (folder / CONFIG).is_file():
        if base_model is None or lora_config is None:
            raise FileNotFoundError(
                f"{folder} contains no {CONFIG}; add the file, or pass base_model and lora_config"
            )
        return LocalAdapter(folder=folder, base_model=base_model, lora_config=lora_config)
    config = read_json(folder / CONFIG)
    rank, _ = check_config(config)
    found = _to_lora_config(rank, read_modules(folder))
    if lora_config is not None and lora_config.rank != rank:
        raise ValueError(f"lora_config.rank is {lora_config.rank}, but r is {rank} in {CONFIG}")
    return LocalAdapter(
        folder=folder, base_model=base_model or _read_base(config), lora_config=lora_config or found
    )


def read_json(file: Path, most_nbytes: int = _MAX_CONFIG_NBYTES) -> dict[str, Any]:
    """Read an object. ValueError, with the file's name, for what is none, or larger than a file of
    its kind is.
    """
    if file.stat().st_size > most_nbytes:
        raise ValueError(f"{file.name} is larger than {most_nbytes} bytes")
    try:
        config: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.name} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{file.name} does not contain a JSON object")
    return cast("dict[str, Any]", config)


def check_config(config: Mapping[str, Any]) -> tuple[int, float]:
    """Return the rank, and by what PEFT scales updates. ValueError for an adapter
    of another kind.
    """
    if config.get("peft_type") != "LORA":
        raise ValueError(
            f"{CONFIG}: peft_type is {config.get('peft_type')!r}; only LORA adapters are supported"
        )
    for name in _REFUSED:
        if config.get(name):
            raise ValueError(
                f"{CONFIG}: {name} is {config[name]!r}; adapters with this "
                "setting are not supported"
            )
    if config.get("bias", "none") != "none":
        raise ValueError(f"{CONFIG}: bias is {config['bias']!r}; only 'none' is supported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ValueError(f"{CONFIG}: r is {rank!r}; it must be an integer of at least 1")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise ValueError(f"{CONFIG}: lora_alpha is {alpha!r}; it must be a number")
    return rank, alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _read_base(config: Mapping[str, Any]) -> str:
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{CONFIG} does not name the base model; pass base_model")
    return name


def _to_lora_config(rank: int, modules: Iterable[str]) -> models.LoraConfig:
    """Return what kinds of modules are adapted: attention, the output layer, or others, which count
    as MLP.
    """
    kinds = {_find_kind(module) for module in modules}
    return models.LoraConfig(
        rank=rank,
        train_attn="attn" in kinds,
        train_mlp="mlp" in kinds,
        train_unembed="unembed" in kinds,
    )


def _find_kind(module: str) -> str:
    parent, _, leaf = module.rpartition(".")
    return "unembed" if leaf in HEADS else "attn" if _ATTENTION.search(parent) else "mlp"


def read_modules(folder: Path) -> dict[str, dict[str, TensorEntry]]:
    """Return the entries of the weights by the adapted module and what follows it. ValueError for a
    file that is damaged.
    """
    file = folder / WEIGHTS
    if not file.is_file():
        if (folder / _PICKLED).is_file():
            raise ValueError(
                f"{folder} contains {_PICKLED}, which is pickled; save the adapter with "
                "safe_serialization=True"
            )
        raise FileNotFoundError(f"{folder} contains no {WEIGHTS}")
    modules = dict[str, dict[str, TensorEntry]]()
    for name, entry in sorted(read_header(file).items()):
        module, found, factor = name.partition(".lora_")
        if not found:
            advice = (
                "save the adapter with save_embedding_layers=False, which omits "
                "weights of the base model"
            )
            raise ValueError(
                f"{WEIGHTS} contains {name}, which is not part of a LoRA adapter; {advice}"
            )
        modules.setdefault(module, {})[factor] = entry
    if not modules:
        raise ValueError(f"{WEIGHTS} contains no weights")
    return modules


class TensorEntry(msgspec.Struct, frozen=True):
    """What the header of a safetensors file says about a tensor; the offsets are
    those in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Return the size of the tensor."""
        return self.data_offsets[1] - self.data_offsets[0]


def read_header(file: Path) -> dict[str, TensorEntry]:
    """Return the tensors of a safetensors file, all of which it has the bytes of,
    in their order.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= min(_MAX_HEADER_NBYTES, size - 8):
            raise ValueError(f"{file.name} is damaged or not a safetensors file")
        try:
            header = msgspec.json.decode(opened.read(length), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            entries = {
                name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in header.items()
            }
        except (ValueError, RecursionError):
            raise ValueError(f"{file.name} is damaged or not a safetensors file") from None
    found = sorted(
        ((name, _move(entry, 8 + length)) for name, entry in entries.items()),
        key=lambda one: one[1].data_offsets,
    )
    end = max((entry.data_offsets[1] for _, entry in found), default=8 + length)
    if end != size:
        raise ValueError(f"{file.name} is incomplete: it has {size} bytes instead of {end}")
    return dict(found)


def _move(entry: TensorEntry, by: int) -> TensorEntry:
    start, end = entry.data_offsets
    return msgspec.structs.replace(entry, data_offsets=(start + by, end + by))
