"""A Llama in numpy: from tokens to the states behind its last layer and their logits, and the
gradient back.

Each layer adds to the state ``x`` of every token, first by attention and then by an MLP:

    x <- x + o_proj(attend(rotate(q_proj(n)), rotate(k_proj(n)), v_proj(n)))    n = norm(x)
    x <- x + down_proj(gate(gate_proj(n), up_proj(n)))                          n = norm(x)

A matrix ``W`` maps ``x`` to ``x W^T``. With an adapter it is ``W + scale * B A``, of which only A
and B have a gradient. States are ``[cells, width]``: the cells of a row are the tokens of a
sequence, with padding behind the last one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.adapter_files import read_tensors
from tinker.local.engines.arrays import ArrayWeights, Reals, zeros_like
from tinker.local.engines.lora import LoraTarget
from tinker.local.engines.numpy.operations import (
    attend,
    attend_slopes,
    gate,
    gate_slopes,
    norm,
    norm_slope,
    rotate,
)

Int64 = NDArray[np.int64]
Matrices = Mapping[str, Reals]  # by the names of their modules
EMBEDDING, LAST_NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"
SPARE_COLUMNS = 16  # of a cache, when it becomes wider
#: What a configuration must say, or leave out, for this to be its model.
PLAIN: Mapping[str, Sequence[object]] = {
    "model_type": ("llama",),
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "rope_scaling": (None,),
}


def pad(rows: Sequence[NDArray[np.integer[Any]]]) -> tuple[Int64, Int64]:
    """Return tokens ``[rows, columns]``, with zeros behind the shorter rows, and the position of
    each.
    """
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return padded, np.arange(padded.shape[1]) + np.zeros_like(padded)


@attrs.frozen(kw_only=True)
class LlamaShape:
    """The sizes of a model. Each of the ``groups`` of keys and values serves as many heads of
    queries.
    """

    vocabulary: int
    longest: int
    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    head_width: int
    epsilon: float
    theta: float
    is_tied: bool

    @classmethod
    def read(cls, folder: Path) -> LlamaShape:
        """Read ``config.json``. Raises ValueError for another architecture."""
        config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 10000.0)}
        odd = [
            f"{name} {config[name]!r}"
            for name, plain in PLAIN.items()
            if name in config and config[name] not in plain
        ]
        if odd or rope.get("rope_type", "default") != "default":
            reason = odd[0] if odd else f"rope_type {rope['rope_type']!r}"
            raise ValueError(
                f"the numpy engine takes plain Llama models, and {folder.name} has {reason}; use "
                "the torch engine"
            )
        return cls(
            vocabulary=config["vocab_size"],
            longest=config["max_position_embeddings"],
            width=config["hidden_size"],
            inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            groups=config.get("num_key_value_heads") or config["num_attention_heads"],
            head_width=config.get("head_dim")
            or config["hidden_size"] // config["num_attention_heads"],
            epsilon=config["rms_norm_eps"],
            theta=rope["rope_theta"],
            is_tied=config.get("tie_word_embeddings", False),
        )

    def targets(self) -> list[LoraTarget]:
        """Return the matrices that an adapter can change, in the order of the model."""
        width, inner, query, key = (
            self.width,
            self.inner,
            self.heads * self.head_width,
            self.groups * self.head_width,
        )
        of_attention = {
            "q_proj": (width, query),
            "k_proj": (width, key),
            "v_proj": (width, key),
            "o_proj": (query, width),
        }
        of_mlp = {
            "gate_proj": (width, inner),
            "up_proj": (width, inner),
            "down_proj": (inner, width),
        }
        found: list[LoraTarget] = []
        for layer in range(self.layers):
            for part, kind, sizes in (("self_attn", "attn", of_attention), ("mlp", "mlp", of_mlp)):
                names = {
                    f"model.layers.{layer}.{part}.{leaf}": size for leaf, size in sizes.items()
                }
                found += [LoraTarget(name, name, kind, *size) for name, size in names.items()]
        return [*found, LoraTarget(HEAD, HEAD, "unembed", width, self.vocabulary)]


class Cache:
    """Keys and values of rows, ``[2, rows, columns, groups, head_width]`` of each layer; the first
    ``lengths`` are tokens.
    """

    def __init__(self, shape: LlamaShape, rows: int, columns: int) -> None:
        self.lengths: Int64 = np.zeros(rows, np.int64)
        size = (2, rows, columns, shape.groups, shape.head_width)
        self._held: list[Reals] = [np.zeros(size, np.float32) for _ in range(shape.layers)]

    def write(
        self, layer: int, positions: Int64, keys: Reals, values: Reals
    ) -> tuple[Reals, Reals]:
        """Put keys and values in their places, and return those of all columns up to the last one
        of these.
        """
        end, rows = int(positions.max()) + 1, np.arange(len(positions))[:, None]
        if end > self._held[layer].shape[2]:
            self._held[layer] = _widen(self._held[layer], end + SPARE_COLUMNS)
        held = self._held[layer]
        held[0, rows, positions], held[1, rows, positions] = keys, values
        return held[0, :, :end], held[1, :, :end]

    def select(self, rows: Sequence[int]) -> None:
        """Keep these rows, in this order; one may come more than once."""
        self.lengths = self.lengths[rows]
        for layer, held in enumerate(self._held):
            self._held[layer] = held[:, rows]

    def join(self, other: Cache) -> None:
        """Add the rows of another cache."""
        self.lengths = np.concatenate([self.lengths, other.lengths])
        for layer, pair in enumerate(zip(self._held, other._held)):
            columns = max(held.shape[2] for held in pair)
            self._held[layer] = np.concatenate([_widen(held, columns) for held in pair], axis=1)


def _widen(held: Reals, columns: int) -> Reals:
    return np.pad(held, [(0, 0), (0, 0), (0, columns - held.shape[2]), (0, 0), (0, 0)])


@attrs.frozen(eq=False)
class LayerTape:
    """What a layer has computed, in the order of the formulas above."""

    x: Reals
    normed: Reals
    queries: Reals
    keys: Reals
    values: Reals
    shares: Reals
    mixed: Reals
    middle: Reals
    normed_middle: Reals
    opening: Reals
    inner: Reals


class Gradient:
    """The gradient by the factors of an adapter, on the way back through a model with these
    ``matrices``.
    """

    def __init__(self, matrices: Matrices, weights: ArrayWeights) -> None:
        self._matrices, self._weights = matrices, weights
        self.by_factor: dict[str, Reals] = zeros_like(weights.tensors)

    def pass_back(self, name: str, x: Reals, slope: Reals) -> Reals:
        """Note the gradient by the factors of a matrix that has mapped ``x``, and return the slope
        by ``x``.
        """
        down, up = f"{name}.lora_A.weight", f"{name}.lora_B.weight"
        if down in self._weights.tensors:
            a, b, scale = (
                self._weights.tensors[down],
                self._weights.tensors[up],
                np.float32(self._weights.spec.scale),
            )
            self.by_factor[down] = scale * ((slope @ b).T @ x)
            self.by_factor[up] = scale * (slope.T @ (x @ a.T))
        return slope @ self._matrices[name]


class Llama:
    """A frozen model: the ``matrices`` of its modules, and the weights of its norms."""

    def __init__(self, folder: Path) -> None:
        shape = LlamaShape.read(folder)
        self.shape: LlamaShape = shape
        stored = {
            name.removesuffix(".weight"): tensor
            for name, tensor in read_tensors(folder / "model.safetensors").items()
        }
        self.matrices: Matrices = {**stored, HEAD: stored[EMBEDDING]} if shape.is_tied else stored
        angles = np.outer(
            np.arange(shape.longest), shape.theta ** (-np.arange(0, 1, 2 / shape.head_width))
        )
        self._cos: Reals = np.cos(np.tile(angles, 2))[:, None].astype(np.float32)
        self._sin: Reals = np.sin(np.tile(angles, 2))[:, None].astype(np.float32)

    def adapt(self, weights: ArrayWeights) -> Matrices:
        """Return the matrices with the update of an adapter."""
        changed = dict(self.matrices)
        for down in (name for name in weights.tensors if ".lora_A." in name):
            a, b = weights.tensors[down], weights.tensors[down.replace(".lora_A.", ".lora_B.")]
            name = down.partition(".lora_")[0]
            changed[name] = self.matrices[name] + np.float32(weights.spec.scale) * (b @ a)
        return changed

    def run(
        self, matrices: Matrices, tokens: Int64, positions: Int64, cache: Cache | None = None
    ) -> tuple[Reals, list[LayerTape]]:
        """Compute the states behind the last layer of tokens ``[rows, columns]`` at their
        positions, behind those of a cache.

        Every token sees those at its own position and before it. Without a cache, the tapes of the
        layers are for the way back.
        """
        x: Reals = self.matrices[EMBEDDING][tokens].reshape(-1, self.shape.width)
        seen = np.arange(int(positions.max()) + 1) <= positions[:, :, None]
        mask, tapes = np.where(seen, np.float32(0), np.float32(-np.inf)), list[LayerTape]()
        for layer in range(self.shape.layers):
            x, tape = self._run_layer(layer, x, matrices, positions, mask, cache)
            if cache is None:
                tapes.append(tape)
        return x, tapes

    def find_logits(self, matrices: Matrices, x: Reals) -> Reals:
        """Compute the logits ``[cells, vocabulary]`` of states behind the last layer."""
        return self._norm(LAST_NORM, x) @ matrices[HEAD].T

    def _norm(self, name: str, x: Reals) -> Reals:
        return norm(x, self.matrices[name], self.shape.epsilon)

    def _run_layer(
        self,
        layer: int,
        x: Reals,
        matrices: Matrices,
        positions: Int64,
        mask: Reals,
        cache: Cache | None,
    ) -> tuple[Reals, LayerTape]:
        name, heads = f"model.layers.{layer}", (*positions.shape, -1, self.shape.head_width)
        normed = self._norm(f"{name}.input_layernorm", x)
        queries, keys, values = (
            (normed @ matrices[f"{name}.self_attn.{leaf}"].T).reshape(heads)
            for leaf in ("q_proj", "k_proj", "v_proj")
        )
        cos, sin = self._cos[positions], self._sin[positions]
        queries, keys = rotate(queries, cos, sin), rotate(keys, cos, sin)
        if cache is not None:
            keys, values = cache.write(layer, positions, keys, values)
        mixed, shares = attend(queries, keys, values, mask)
        mixed = mixed.reshape(len(x), -1)
        middle = x + mixed @ matrices[f"{name}.self_attn.o_proj"].T
        normed_middle = self._norm(f"{name}.post_attention_layernorm", middle)
        opening, inner = (
            normed_middle @ matrices[f"{name}.mlp.{leaf}"].T for leaf in ("gate_proj", "up_proj")
        )
        after = middle + gate(opening, inner) @ matrices[f"{name}.mlp.down_proj"].T
        return after, LayerTape(
            x, normed, queries, keys, values, shares, mixed, middle, normed_middle, opening, inner
        )

    # The way back

    def pass_back_logits(self, x: Reals, slope: Reals, gradient: Gradient) -> Reals:
        """Return the slope by states behind the last layer, given that by their logits."""
        return self._pass_norm(
            LAST_NORM, x, gradient.pass_back(HEAD, self._norm(LAST_NORM, x), slope)
        )

    def pass_back(
        self, tapes: Sequence[LayerTape], positions: Int64, slope: Reals, gradient: Gradient
    ) -> None:
        """Note the gradient of every layer, given the slope by the states behind the last one."""
        for layer in reversed(range(self.shape.layers)):
            slope = self._pass_layer(layer, tapes[layer], positions, slope, gradient)

    def _pass_norm(self, name: str, x: Reals, slope: Reals) -> Reals:
        return norm_slope(slope, x, self.matrices[name], self.shape.epsilon)

    def _pass_layer(
        self, layer: int, tape: LayerTape, positions: Int64, slope: Reals, gradient: Gradient
    ) -> Reals:
        """Go back through :meth:`_run_layer`."""
        name, back = f"model.layers.{layer}", gradient.pass_back
        by_gated = back(f"{name}.mlp.down_proj", gate(tape.opening, tape.inner), slope)
        by_opening, by_inner = gate_slopes(by_gated, tape.opening, tape.inner)
        by_normed = back(f"{name}.mlp.gate_proj", tape.normed_middle, by_opening)
        by_normed += back(f"{name}.mlp.up_proj", tape.normed_middle, by_inner)
        slope = slope + self._pass_norm(f"{name}.post_attention_layernorm", tape.middle, by_normed)

        by_mixed = back(f"{name}.self_attn.o_proj", tape.mixed, slope).reshape(tape.queries.shape)
        by_queries, by_keys, by_values = attend_slopes(
            by_mixed, tape.queries, tape.keys, tape.values, tape.shares
        )
        cos, sin = self._cos[positions], self._sin[positions]
        by_queries, by_keys = rotate(by_queries, cos, -sin), rotate(by_keys, cos, -sin)
        cells, by_normed = len(tape.x), np.zeros_like(tape.normed)
        for leaf, one in (("q_proj", by_queries), ("k_proj", by_keys), ("v_proj", by_values)):
            by_normed += back(f"{name}.self_attn.{leaf}", tape.normed, one.reshape(cells, -1))
        return slope + self._pass_norm(f"{name}.input_layernorm", tape.x, by_normed)
