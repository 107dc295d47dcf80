"""What was computed for the beginnings of earlier sequences, so that the next turn of a conversation begins where one ended.

A tree for each set of weights: a node holds some tokens with their keys and values, its children continue in different
ways. What was used the longest ago goes first, from the ends of the tree; a tree goes with its weights.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import torch

from tinker.local.engines.torch.caches import KeysAndValues
from tinker.local.engines.torch.image_rows import TokenNames
from tinker.local.engines.torch.lora import LoraWeights

SHORTEST = 32  # tokens; a shorter beginning is computed again as fast as it is found
MAX_NBYTES = 1 << 28
ReadCache = Callable[[int, int], KeysAndValues]  # the keys and values of the tokens from one position to another


@attrs.define(eq=False)
class PrefixNode:
    """Tokens that follow on those of the parent, by their names. ``used`` counts up with every use of the whole cache."""

    tokens: TokenNames
    states: KeysAndValues
    used: int = 0
    children: dict[int, PrefixNode] = attrs.field(factory=lambda: dict[int, PrefixNode]())
    nbytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.nbytes = sum(tensor.nbytes for pair in self.states for tensor in pair)

    def split(self, at: int) -> None:
        """Make two of this node, which keeps the first ``at`` tokens."""
        rest = PrefixNode(self.tokens[at:], _cut(self.states, at, None), self.used, self.children)
        self.tokens, self.states = self.tokens[:at], _cut(self.states, 0, at)
        self.nbytes -= rest.nbytes
        self.children = {int(rest.tokens[0]): rest}


def _cut(states: KeysAndValues, start: int, end: int | None) -> KeysAndValues:
    return [(keys[:, start:end].clone(), values[:, start:end].clone()) for keys, values in states]


def _count_common(first: TokenNames, second: TokenNames) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


class Prefixes:
    """Beginnings of sequences by their weights, up to ``limit`` bytes."""

    def __init__(self, limit: int = MAX_NBYTES) -> None:
        self._limit = limit
        self._base = PrefixNode(np.empty(0, np.int32), [])
        self._trees: weakref.WeakKeyDictionary[LoraWeights, PrefixNode] = weakref.WeakKeyDictionary()
        self._clock = itertools.count(1)

    @property
    def nbytes(self) -> int:
        """Return the bytes held now."""
        return sum(node.nbytes for _, node in self._nodes())

    def find(self, weights: LoraWeights | None, tokens: TokenNames) -> tuple[int, KeysAndValues]:
        """Find the longest known beginning. Returns its length, 0 where it is not worth it, and its keys and values."""
        path, length = self._walk(self._tree(weights), tokens)
        if length < SHORTEST:
            return 0, []
        parts = [_cut(node.states, 0, count) if count < len(node.tokens) else node.states for node, count in path]
        return length, [
            (torch.cat([part[layer][0] for part in parts], dim=1), torch.cat([part[layer][1] for part in parts], dim=1))
            for layer in range(len(parts[0]))
        ]

    def add(self, weights: LoraWeights | None, tokens: TokenNames, read: ReadCache) -> None:
        """Remember a sequence; of what is known already nothing is read."""
        if len(tokens) < SHORTEST:
            return
        path, length = self._walk(self._tree(weights), tokens)
        if length < len(tokens):
            node, count = path[-1] if path else (self._tree(weights), 0)
            if count < len(node.tokens):
                node.split(count)
            node.children[int(tokens[length])] = PrefixNode(tokens[length:], read(length, len(tokens)), next(self._clock))
            self._evict()

    def _tree(self, weights: LoraWeights | None) -> PrefixNode:
        if weights is None:
            return self._base
        return self._trees.setdefault(weights, PrefixNode(np.empty(0, np.int32), []))

    def _walk(self, node: PrefixNode, tokens: TokenNames) -> tuple[list[tuple[PrefixNode, int]], int]:
        """Follow the tokens: the nodes with how many tokens of each fit, and how many that is in all."""
        path, length = list[tuple[PrefixNode, int]](), 0
        while length < len(tokens) and (child := node.children.get(int(tokens[length]))) is not None:
            common = _count_common(child.tokens, tokens[length:])
            child.used = next(self._clock)
            path.append((child, common))
            length += common
            if common < len(child.tokens):
                break
            node = child
        return path, length

    def _nodes(self) -> Iterator[tuple[PrefixNode, PrefixNode]]:
        """Yield every node with its parent."""
        waiting = [self._base, *self._trees.values()]
        while waiting:
            parent = waiting.pop()
            for child in parent.children.values():
                yield parent, child
                waiting.append(child)

    def _evict(self) -> None:
        """Drop ends of the trees until what is left is within the limit."""
        while (nbytes := self.nbytes) > self._limit:
            ends = sorted(((p, c) for p, c in self._nodes() if not c.children), key=lambda pair: pair[1].used)
            for parent, child in ends:
                if nbytes <= self._limit:
                    break
                nbytes -= child.nbytes
                del parent.children[int(child.tokens[0])]
