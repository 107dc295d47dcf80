"""Adapters become whole models, or repositories of a hub. Blocks; not for the loop thread."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar, cast

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from tinker._basics.installation import install_command
from tinker._checkpoints import (
    CONFIG,
    HEADS,
    PEFT_PREFIX,
    WEIGHTS,
    TensorEntry,
    UploadWatch,
    check_config,
    read_header,
    read_json,
    read_modules,
)
from tinker.errors import TinkerError
from tinker.types.params import SCHEME, ParsedCheckpointTinkerPath

T = TypeVar("T")
Matrix: TypeAlias = NDArray[np.float32]
#: The tensors of one part of the experts of a layer, name and shape by the expert; None has all of
#: them.
ExpertTensors: TypeAlias = dict[int | None, tuple[str, tuple[int, ...]]]
MODEL_CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_PARTIAL = ".partial"
_MAX_INDEX_NBYTES = 100 << 20
PIECE_NBYTES = 16 << 20
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_OTHER_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".index.json",
)
_LAYER = re.compile(r"[^.]+\.\d+\.")
_EXPERTS = re.compile(
    r"([^.]+\.\d+\.)(?:.*\.)?(?:experts|block_sparse_moe)\.(?:(\d+)\.)?(\w+?)(?:\.weight)?"
)
_PARTS = {
    **dict.fromkeys(("gate_up_proj", "input_linear"), "gate_up"),
    **dict.fromkeys(("gate_proj", "w1"), "gate"),
    **dict.fromkeys(("up_proj", "w3"), "up"),
    **dict.fromkeys(("down_proj", "w2", "output_linear"), "down"),
}
#: Parts that are, one below another, the first matrix of an expert, or its second.
_FIRST, _SECOND = (("gate_up",), ("gate", "up"), ("up",)), (("down",),)
_FEW = 3


@attrs.frozen
class ModelFiles:
    """The files of a model: its configuration, and the tensors of each file."""

    folder: Path
    config: Mapping[str, Any]
    files: Mapping[str, Mapping[str, TensorEntry]]


@attrs.frozen
class MatrixUpdate:
    """What is added to a tensor: the update of these of ``count`` experts, and of that these rows;
    1 expert is a matrix.
    """

    key: str
    experts: Sequence[int] = (0,)
    count: int = 1
    rows: slice = slice(None)
    is_transposed: bool = False


def read_model(folder: Path) -> ModelFiles:
    """Read what a folder holds. FileNotFoundError or ValueError for one that is no model in
    safetensors files, or quantized.
    """
    if not (folder / MODEL_CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} contains no {MODEL_CONFIG}; pass the folder of the base model, in "
            "safetensors files"
        )
    config = read_json(folder / MODEL_CONFIG)
    for part in (config, _read_text_config(config)):
        if quantization := part.get("quantization_config"):
            method = quantization.get("quant_method", "by an unknown method")
            raise ValueError(
                f"{folder} is quantized ({method}); merge into the model in "
                "bfloat16, float16 or float32"
            )
    names = [SINGLE]
    if (folder / INDEX).is_file():
        names = sorted(
            set(read_json(folder / INDEX, _MAX_INDEX_NBYTES).get("weight_map", {}).values())
        )
    for name in names:
        if Path(name).name != name or not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} contains no {name}; pass the folder of the base "
                "model, in safetensors files"
            )
    return ModelFiles(folder, config, {name: read_header(folder / name) for name in names})


def _read_text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the language model of a model that has other parts, else an empty
    one.
    """
    found = config.get("text_config")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def check_empty(out: Path) -> None:
    """Raise NotADirectoryError for a file, FileExistsError for a folder with more in it than an
    interrupted merge leaves.
    """
    if file := next((one for one in (out, *out.parents) if one.is_file()), None):
        raise NotADirectoryError(f"{file} is not a folder")
    if out.exists() and any(one.name != _PARTIAL for one in out.iterdir()):
        raise FileExistsError(f"{out} is not empty; choose a new folder")


def merge(adapter: Path, model: ModelFiles, out: Path, watch: UploadWatch) -> Merging:
    """Write the merged model. ValueError, and nothing is written, for an adapter that does not fit
    the model.

    The files are moved into the folder when all are there, last the one without which it is no
    model.
    """
    merging = Merging.plan(adapter, model)
    check_empty(out)
    partial = out / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        merging.write(partial, watch)
        for file in sorted(partial.iterdir(), key=lambda one: one.name == MODEL_CONFIG):
            file.rename(out / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return merging


@attrs.frozen
class Merging:
    """A base model, and what an adapter adds to it; ``head`` is the name of a new one, and of the
    embedding that it was.
    """

    model: ModelFiles
    factors: Mapping[str, TensorEntry]
    weights: Path
    scale: float
    changes: Mapping[str, MatrixUpdate]
    head: tuple[str, str] | None

    @classmethod
    def plan(cls, adapter: Path, model: ModelFiles) -> Merging:
        """Find where each matrix belongs. ValueError, with the first names, if any
        belongs nowhere.
        """
        rank, scale = check_config(read_json(adapter / CONFIG))
        modules = read_modules(adapter)
        names, changes, misfits = _Names(model), dict[str, MatrixUpdate](), list[str]()
        for key, entries in modules.items():
            is_pair = entries.keys() == {"A.weight", "B.weight"}
            are_matrices = all(
                len(entry.shape) == 2 and entry.dtype in _DTYPES for entry in entries.values()
            )
            found = names.find(key, rank, entries, modules) if is_pair and are_matrices else {}
            if not found or not changes.keys().isdisjoint(found):
                shapes = " and ".join("x".join(map(str, entry.shape)) for entry in entries.values())
                misfits.append(f"{key.removeprefix(PEFT_PREFIX)} ({shapes})")
            changes |= found
        if misfits:
            more = f" and {len(misfits) - _FEW} more" if len(misfits) > _FEW else ""
            first = ", ".join(misfits[:_FEW])
            raise ValueError(
                f"the adapter (rank {rank}) does not fit {model.folder}: no place for {first}{more}"
            )
        factors = {
            f"{name}.lora_{factor}": entry
            for name, one in modules.items()
            for factor, entry in one.items()
        }
        return cls(model, factors, adapter / WEIGHTS, scale, changes, names.new_head)

    @functools.cached_property
    def files(self) -> Mapping[str, Mapping[str, TensorEntry]]:
        """Return the tensors of each file, with where they are in that of the base; a new head is
        beside the embedding.
        """
        head, embedding = self.head or ("", "")
        both = {
            name: {**tensors, head: tensors[embedding]}
            for name, tensors in self.model.files.items()
            if embedding in tensors
        }
        return {**self.model.files, **both}

    @functools.cached_property
    def nbytes(self) -> int:
        """Return the size of all tensors."""
        return sum(entry.nbytes for tensors in self.files.values() for entry in tensors.values())

    @np.errstate(over="ignore", invalid="ignore")
    def write(self, folder: Path, watch: UploadWatch) -> None:
        """Write every file of the model."""
        sizes = {
            name: sum(entry.nbytes for entry in tensors.values())
            for name, tensors in self.files.items()
        }
        for name, size in sizes.items():
            watch(name, 0, size)
        for name, tensors in self.files.items():
            done = 0
            with (
                (self.model.folder / name).open("rb") as source,
                (folder / name).open("xb") as target,
            ):
                target.write(_encode_header(tensors))
                for piece in self._read(source, tensors):
                    target.write(piece)
                    watch(name, done := done + len(piece), sizes[name])
        self._copy_others(folder)

    def _read(self, source: IO[bytes], tensors: Mapping[str, TensorEntry]) -> Iterator[bytes]:
        # those of a layer's experts, which are many matrices
        read = functools.lru_cache(maxsize=4)(self._read_factor)
        for name, entry in tensors.items():
            change = self.changes.get(name)
            source.seek(entry.data_offsets[0])
            if change is None:
                while data := source.read(min(PIECE_NBYTES, entry.data_offsets[1] - source.tell())):
                    yield data
                continue
            for expert in change.experts:
                left, right = self._split_update(change, expert, read)
                rows = max(1, PIECE_NBYTES // right[0].nbytes)
                for start in range(0, len(left), rows):
                    update: Matrix = left[start : start + rows] @ right
                    numbers = _to_numbers(
                        source.read(update.size * np.dtype(_DTYPES[entry.dtype]).itemsize),
                        entry.dtype,
                    )
                    yield _to_bytes(numbers + update.reshape(-1), entry.dtype, name)

    def _split_update(
        self, change: MatrixUpdate, expert: int, read: Callable[[str], Matrix]
    ) -> tuple[Matrix, Matrix]:
        """Return an expert's update as two factors. PEFT joins A expert by expert, and the columns
        of B rank by rank.
        """
        a, b = read(f"{change.key}.lora_A.weight"), read(f"{change.key}.lora_B.weight")
        down = a.reshape(change.count, -1, a.shape[1])[expert] * np.float32(self.scale)
        up = b.reshape(len(b), -1, change.count)[change.rows, :, expert]
        return (down.T, up.T) if change.is_transposed else (up, down)

    def _read_factor(self, name: str) -> Matrix:
        entry = self.factors[name]
        with self.weights.open("rb") as file:
            file.seek(entry.data_offsets[0])
            numbers: Matrix = _to_numbers(file.read(entry.nbytes), entry.dtype).astype(np.float32)
        return numbers.reshape(entry.shape)

    def _copy_others(self, folder: Path) -> None:
        """Copy what is no weight: configuration, tokenizer, templates, code."""
        for file in self.model.folder.iterdir():
            is_known = file.name.startswith((".", "adapter_")) or file.name.endswith(_OTHER_WEIGHTS)
            if file.is_file() and not is_known:
                shutil.copyfile(file, folder / file.name)
            elif file.name == "additional_chat_templates":
                shutil.copytree(file, folder / file.name)
        if (self.model.folder / INDEX).is_file():
            places = {tensor: name for name, tensors in self.files.items() for tensor in tensors}
            _write_json(
                folder / INDEX, {"metadata": {"total_size": self.nbytes}, "weight_map": places}
            )
        if not all(map(_LAYER.search, self.changes)):
            config = {**self.model.config, "tie_word_embeddings": False}
            if text := _read_text_config(config):
                config["text_config"] = {**text, "tie_word_embeddings": False}
            _write_json(folder / MODEL_CONFIG, config)


class _Names:
    """Where the tensors of a model are, by their names within their layers."""

    def __init__(self, model: ModelFiles) -> None:
        self._shapes = {
            name: entry.shape
            for one in model.files.values()
            for name, entry in one.items()
            if entry.dtype in _DTYPES
        }
        self._matrices = dict[str, dict[str, str]]()
        self._experts = dict[str, dict[str, dict[str, ExpertTensors]]]()
        self.new_head: tuple[str, str] | None = None
        for name, shape in self._shapes.items():
            before, within = _split(name)
            self._matrices.setdefault(within, {})[before] = name
            found = _EXPERTS.fullmatch(within)
            # where a name is the only one of its layer, its module may be called otherwise
            if found is None:
                alike = self._matrices.setdefault(_shorten(within), {})
                alike[before] = "" if before in alike else name
            elif part := _PARTS.get(found[3]):
                parts = (
                    self._experts.setdefault(found[1], {})
                    .setdefault(before, {})
                    .setdefault(part, {})
                )
                parts[None if found[2] is None else int(found[2])] = (name, shape)

    def find(
        self, key: str, rank: int, entries: Mapping[str, TensorEntry], modules: Mapping[str, object]
    ) -> dict[str, MatrixUpdate]:
        """Return what the factors of a module change; nothing where they do not fit."""
        (rows, inputs), (outputs, columns) = entries["A.weight"].shape, entries["B.weight"].shape
        name = key.removeprefix(PEFT_PREFIX)
        before, within = _split(f"{name}.weight")
        places = self._matrices.get(within) or self._matrices.get(_shorten(within)) or {}
        target = _choose(before, places) or self._find_head(name, (outputs, inputs))
        if target is not None:
            fits = self._shapes.get(target) in (None, (outputs, inputs)) and rows == columns == rank
            return {target: MatrixUpdate(key)} if fits else {}
        layer = _LAYER.match(within)
        parts = None if layer is None else _choose(before, self._experts.get(layer[0]) or {})
        if parts is None or rows != columns or rows % rank:
            return {}
        # PEFT wraps a module once for each parameter, the last one outside.
        has_inner, is_inner = f"{key}.base_layer" in modules, key.endswith(".base_layer")
        groups = (*(() if has_inner else _FIRST), *(() if is_inner else _SECOND))
        found = (_fit(key, parts, group, rows // rank, outputs, inputs) for group in groups)
        return next(filter(None, found), dict[str, MatrixUpdate]())

    def _find_head(self, name: str, shape: tuple[int, int]) -> str | None:
        """Return the name of a head; one that has no tensor, because it is the embedding, gets its
        own.
        """
        if _LAYER.search(name):
            return None
        outside = {one: found for one, found in self._shapes.items() if not _LAYER.search(one)}
        apart = [one for one in outside if one.removesuffix(".weight").rpartition(".")[2] in HEADS]
        alike = [one for one, found in outside.items() if found == shape]
        if not apart and len(alike) == 1:
            self.new_head = f"{name}.weight", alike[0]
            return self.new_head[0]
        return apart[0] if len(apart) == 1 else None


def _split(name: str) -> tuple[str, str]:
    """Split a name before its layer, or before its module.

    >>> _split("model.language_model.layers.0.mlp.up_proj.weight"), _split("lm_head.weight")
    (('model.language_model.', 'layers.0.mlp.up_proj.weight'), ('', 'lm_head.weight'))
    """
    found = _LAYER.search(name)
    start = found.start() if found else name.rfind(".", 0, max(0, name.rfind("."))) + 1
    return name[:start], name[start:]


def _shorten(within: str) -> str:
    """Leave out what stands between a layer and the name of a matrix.

    >>> _shorten("layers.0.self_attn.q_proj.weight")
    'layers.0.*.q_proj.weight'
    """
    parts = within.split(".")
    return ".".join([*parts[:2], "*", *parts[-2:]])


def _choose(before: str, places: Mapping[str, T]) -> T | None:
    """Choose among places with other names in front: the same, else the only one with no strange
    parts, else the only one.
    """
    if before in places:
        return places[before]
    words = set(before.split("."))
    near = [
        place
        for name, place in places.items()
        if (parts := set(name.split("."))) <= words or parts >= words
    ]
    chosen = near or list(places.values())
    return chosen[0] if len(chosen) == 1 else None


def _fit(
    key: str,
    parts: Mapping[str, ExpertTensors],
    group: Sequence[str],
    count: int,
    outputs: int,
    inputs: int,
) -> dict[str, MatrixUpdate]:
    """Return the changes of the tensors that are one matrix of each expert, one below another; none
    if one does not fit.
    """
    found, share, is_transposed = (
        dict[str, MatrixUpdate](),
        outputs // len(group),
        _is_transposed(parts),
    )
    for index, part in enumerate(parts.get(name, {}) for name in group):
        rows = slice(index * share, (index + 1) * share)
        stack = (count, inputs, share) if is_transposed else (count, share, inputs)
        for expert, (name, shape) in part.items():
            if shape != (stack if expert is None else (share, inputs)):
                return {}
            found[name] = MatrixUpdate(
                key, range(count) if expert is None else (expert,), count, rows, is_transposed
            )
        if len(part) != (1 if None in part else count):
            return {}
    return found


def _is_transposed(parts: Mapping[str, ExpertTensors]) -> bool:
    """Return whether stacks have their inputs first: the first one then ends with twice what the
    second begins with.
    """
    first, second = (parts.get(name, {}).get(None) for name in ("gate_up", "down"))
    return first is not None and second is not None and first[1][-1] == 2 * second[1][1]


def _to_numbers(data: bytes, dtype: str) -> NDArray[Any]:
    """Return the numbers of a tensor; bfloat16, which numpy does not know, is the upper half of
    float32.
    """
    numbers: NDArray[Any] = np.frombuffer(data, _DTYPES[dtype])
    return (numbers.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else numbers


def _to_bytes(numbers: NDArray[Any], dtype: str, name: str) -> bytes:
    """Return numbers as a tensor's, each rounded once to the nearest. ValueError where one is too
    large, or is none.
    """
    if dtype == "BF16":
        bits = numbers.view(np.uint32)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        is_finite = bool(((rounded & 0x7F80) != 0x7F80).all())
    else:
        rounded = numbers.astype(_DTYPES[dtype])
        is_finite = bool(np.isfinite(rounded).all())
    if not is_finite:
        raise ValueError(f"{name} with the adapter has numbers that are not finite in {dtype}")
    return rounded.astype(_DTYPES[dtype]).tobytes()


def _encode_header(tensors: Mapping[str, TensorEntry]) -> bytes:
    entries, start = dict[str, Any](), 0
    for name, entry in tensors.items():
        entries[name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (start, start := start + entry.nbytes),
        }
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")
    ).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")


CARD = "README.md"
PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MAX_REPO_NAME = 96
_TINKER_PATH = re.compile(re.escape(SCHEME) + r"[^\s`'\"<>)\]]+")


@attrs.frozen(kw_only=True)
class Upload:
    """What to put where; see ``tinker.checkpoints.push_to_hub``."""

    tinker_path: str
    folder: Path
    repo_id: str | None
    public: bool
    revision: str | None
    commit_message: str | None
    create_pr: bool
    allow_patterns: Sequence[str] | None
    ignore_patterns: Sequence[str] | None
    model_card: bool


_SINCE_ENDPOINTS = (1, 4)


@attrs.frozen
class Hub:
    """The hub under the name of one user."""

    api: Any  # HfApi, whose methods are not all typed
    user: str


def connect(token: str | None, endpoint: str | None) -> Hub:
    """Connect as the user who is logged in. ImportError without huggingface_hub, TinkerError
    without a login.

    Older versions of huggingface_hub push to an address of the user's, and fail on what that
    answers.
    """
    try:
        from huggingface_hub import HfApi, __version__
    except ImportError:
        raise ImportError(
            f"pushing to a hub needs huggingface_hub: {install_command('hub')}"
        ) from None
    if endpoint is not None and tuple(map(int, __version__.split(".")[:2])) < _SINCE_ENDPOINTS:
        raise ImportError(
            f"endpoint needs huggingface_hub 1.4 or newer, not {__version__}; "
            "or set HF_ENDPOINT instead"
        )
    api: Any = HfApi(endpoint=endpoint, token=token)
    with _refusals("not logged in to the Hugging Face Hub; run `hf auth login`, or set HF_TOKEN"):
        return Hub(api, api.whoami()["name"])


def push(hub: Hub, upload: Upload) -> tuple[str, str]:
    """Push one commit; return the repository and the address of the commit or pull request.
    TinkerError where that fails.
    """
    base_model = _base_model(upload.folder)
    repo = upload.repo_id or f"{hub.user}/{repo_name(upload.tinker_path, base_model)}"
    with _refusals(f"the hub refused the upload to {repo}"):
        hub.api.create_repo(repo, private=not upload.public, exist_ok=True)
        if upload.revision is not None:
            hub.api.create_branch(repo, branch=upload.revision, exist_ok=True)
        present = _present_card(hub, repo, upload.revision)
        _check_same(present, upload.tinker_path, repo)
        if upload.model_card and present is None and not (upload.folder / CARD).exists():
            (upload.folder / CARD).write_text(
                model_card(upload.tinker_path, base_model, repo), encoding="utf-8"
            )
        commit = hub.api.upload_folder(
            repo_id=repo,
            folder_path=upload.folder,
            revision=upload.revision,
            commit_message=upload.commit_message or f"Adapter of {upload.tinker_path}",
            create_pr=upload.create_pr,
            allow_patterns=_to_list(upload.allow_patterns),
            ignore_patterns=_to_list(upload.ignore_patterns),
        )
    return repo, commit.pr_url or commit.commit_url


def _to_list(patterns: Sequence[str] | None) -> list[str] | None:
    return list(patterns) if patterns else None


@contextmanager
def _refusals(what: str) -> Generator[None]:
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except (HfHubHTTPError, HFValidationError, LocalTokenNotFoundError) as error:
        raise TinkerError(
            what if isinstance(error, LocalTokenNotFoundError) else f"{what}: {error}"
        ) from error


def _base_model(folder: Path) -> str:
    """Read the base model from the adapter's configuration, which must be there,
    and weights too.
    """
    files = {file.name for file in folder.iterdir()}
    if CONFIG not in files or files.isdisjoint(PEFT_WEIGHTS):
        encrypted = "; they are encrypted" if any(name.endswith(".age") for name in files) else ""
        raise TinkerError(
            f"the files are not a PEFT adapter, which has {CONFIG} and {PEFT_WEIGHTS[0]}{encrypted}"
        )
    try:
        config = msgspec.json.decode((folder / CONFIG).read_bytes(), type=_AdapterConfig)
    except msgspec.DecodeError as error:
        raise TinkerError(f"could not read {CONFIG} of the checkpoint: {error}") from error
    return config.base_model_name_or_path or "model"


class _AdapterConfig(msgspec.Struct):
    base_model_name_or_path: str | None = None


def repo_name(tinker_path: str, base_model: str) -> str:
    """Return a name for the repository of a checkpoint, of the letters that the hub allows.

    >>> repo_name("tinker://run-1:train:0/weights/final", "Qwen/Qwen3-8B")
    'tinker-Qwen3-8B-run-1-train-0'
    """
    run = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path).training_run_id
    words = f"tinker-{base_model.rpartition('/')[2]}-{run}"
    name = re.sub(r"-{2,}", "-", re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._-]", "-", words)))
    return name[:MAX_REPO_NAME].strip("-.")


def _present_card(hub: Hub, repo: str, revision: str | None) -> str | None:
    """Return the card that the repository has, None without one."""
    if not hub.api.file_exists(repo, CARD, revision=revision):
        return None
    return Path(hub.api.hf_hub_download(repo, CARD, revision=revision)).read_text(
        encoding="utf-8", errors="replace"
    )


def _check_same(card: str | None, tinker_path: str, repo: str) -> None:
    named = set(_TINKER_PATH.findall(card or ""))
    if named and tinker_path not in named:
        raise TinkerError(
            f"{repo} already contains another checkpoint, {min(named)}; pass another repo_id"
        )


def model_card(tinker_path: str, base_model: str, repo: str) -> str:
    """Return the text of a README.md that says what this is and how to load it."""
    return f"""---
base_model: {base_model}
library_name: peft
tags:
- lora
- tinker
---

# {repo.rpartition("/")[2]}

A LoRA adapter for `{base_model}`, trained through the Tinker API.
It is the checkpoint `{tinker_path}`.

```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained("{repo}")
```
"""
