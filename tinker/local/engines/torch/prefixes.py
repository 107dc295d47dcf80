"""A prefix cache: keys and values of earlier sequences, so that the next turn of a conversation continues from the last.

A tree for each set of weights: a node holds some tokens with their keys and values, its children continue in different
ways. What was used the longest ago goes first, from the ends of the tree; a tree goes with its weights.

A sequence that begins like a cached one can continue from any of its tokens where every layer holds keys and values of each
token. Sliding windows, linear attention and the like are kept as they were behind the last token of a node, and only from there
can a sequence continue: such models are asked for a ``whole`` beginning.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable

import attrs
import numpy as np

from tinker.local.engines.torch.image_rows import TokenNames
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.rows import RowStates, join_states

SHORTEST = 32  # tokens; a shorter beginning is computed again as fast as it is found
MAX_NBYTES = 1 << 28
ReadCache = Callable[[int, int], RowStates]  # the states of the tokens from one position to another


@attrs.define(eq=False)
class PrefixNode:
    """Tokens that follow on those of the parent, by their names. ``used`` counts up with every use of the whole cache."""

    tokens: TokenNames
    states: RowStates
    parent: PrefixNode | None = None
    used: int = 0
    children: dict[int, PrefixNode] = attrs.field(factory=lambda: dict[int, PrefixNode]())

    def add(self, tokens: TokenNames, states: RowStates) -> PrefixNode:
        """Make a child, which continues with these tokens."""
        child = self.children[int(tokens[0])] = PrefixNode(tokens, states, self)
        return child

    def split(self, at: int) -> PrefixNode:
        """Make two of this node, which keeps the first ``at`` tokens. Returns the one with the rest."""
        children, self.children = self.children, {}
        rest = self.add(self.tokens[at:], self.states.cut(at))
        rest.used, rest.children = self.used, children
        for child in children.values():
            child.parent = rest
        self.tokens, self.states = self.tokens[:at], self.states.cut(0, at)
        return rest


class PrefixTree:
    """The prefixes of one set of weights, and the bytes that they hold.

    ``nodes`` are in the order of their last use. A use of a node uses its parents after it, so the first one has no children.
    """

    def __init__(self) -> None:
        self.root: PrefixNode = PrefixNode(np.empty(0, np.int32), RowStates())
        self.nodes: OrderedDict[PrefixNode, None] = OrderedDict()
        self.nbytes: int = 0

    def walk(self, tokens: TokenNames) -> tuple[list[tuple[PrefixNode, int]], int]:
        """Follow the tokens: the nodes with how many tokens of each fit, and how many that is in all."""
        path, length, node = list[tuple[PrefixNode, int]](), 0, self.root
        while length < len(tokens) and (child := node.children.get(int(tokens[length]))) is not None:
            common = _count_common(child.tokens, tokens[length:])
            path.append((child, common))
            length += common
            if common < len(child.tokens):
                break
            node = child
        return path, length

    def use(self, node: PrefixNode, now: int) -> None:
        """Mark a node and its ancestors as used."""
        while node.parent is not None:
            node.used = now
            self.nodes[node] = None
            self.nodes.move_to_end(node)
            node = node.parent

    def add(self, parent: PrefixNode, at: int, tokens: TokenNames, states: RowStates) -> PrefixNode:
        """Add tokens behind the first ``at`` tokens of a node; without any, only what layers hold there."""
        if at < len(parent.tokens):
            self.nodes[parent.split(at)] = None
        self.nbytes += states.nbytes
        if len(tokens):
            return parent.add(tokens, states)
        parent.states.end = states.end
        return parent

    def drop_oldest(self) -> None:
        """Forget the node that was used the longest ago."""
        node, _ = self.nodes.popitem(last=False)
        assert node.parent is not None
        del node.parent.children[int(node.tokens[0])]
        self.nbytes -= node.states.nbytes


def _count_common(first: TokenNames, second: TokenNames) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def _is_end(node: PrefixNode, count: int) -> bool:
    """Return whether what layers hold behind the first ``count`` tokens of a node is there as a whole."""
    return count == len(node.tokens) and node.states.end is not None


class Prefixes:
    """Beginnings of sequences by their weights, up to ``limit`` bytes."""

    def __init__(self, limit: int = MAX_NBYTES) -> None:
        self._limit = limit
        self._base = PrefixTree()
        self._trees: weakref.WeakKeyDictionary[LoraWeights, PrefixTree] = weakref.WeakKeyDictionary()
        self._clock = itertools.count(1)

    @property
    def nbytes(self) -> int:
        """Return the bytes held now."""
        return sum(tree.nbytes for tree in (self._base, *self._trees.values()))

    def find(self, weights: LoraWeights | None, tokens: TokenNames, *, whole: bool = False) -> tuple[int, RowStates]:
        """Find the longest cached prefix. Returns its length (0 if it is too short to help), and its states."""
        path, length = self._walk(self._tree(weights), tokens)
        while whole and path and not _is_end(*path[-1]):
            length -= path.pop()[1]
        if length < SHORTEST:
            return 0, RowStates()
        return length, join_states(
            [node.states.cut(0, count) if count < len(node.tokens) else node.states for node, count in path]
        )

    def add(self, weights: LoraWeights | None, tokens: TokenNames, read: ReadCache, *, whole: bool = False) -> None:
        """Add a sequence; only the part that is not cached is read."""
        if len(tokens) < SHORTEST:
            return
        tree = self._tree(weights)
        path, length = self._walk(tree, tokens)
        parent, at = path[-1] if path else (tree.root, 0)
        if length < len(tokens) or (whole and not _is_end(parent, at)):
            tree.use(tree.add(parent, at, tokens[length:], read(length, len(tokens))), next(self._clock))
            self._evict()

    def _tree(self, weights: LoraWeights | None) -> PrefixTree:
        return self._base if weights is None else self._trees.setdefault(weights, PrefixTree())

    def _walk(self, tree: PrefixTree, tokens: TokenNames) -> tuple[list[tuple[PrefixNode, int]], int]:
        """Follow the tokens in a tree, and mark the nodes found as used."""
        path, length = tree.walk(tokens)
        if path:
            tree.use(path[-1][0], next(self._clock))
        return path, length

    def _evict(self) -> None:
        """Drop leaves until the cache is within its limit."""
        while self.nbytes > self._limit:
            trees = [tree for tree in (self._base, *self._trees.values()) if tree.nodes]
            min(trees, key=lambda tree: next(iter(tree.nodes)).used).drop_oldest()
