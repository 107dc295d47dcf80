"""Prefill: prompts are deduplicated, continued from cached prefixes, and scored."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from tinker.local.engines.batches import split_batches, split_where
from tinker.local.engines.protocol import Int32, PlacedImage
from tinker.local.engines.runs import DecodingRun, PromptScorer, needs_table
from tinker.local.engines.torch.head import SplitModel
from tinker.local.engines.torch.image_rows import ImageRow, ImageStates, TokenNames, find_positions, name_tokens
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.mixture import can_mix
from tinker.local.engines.torch.rows import RowStates, make_cache, read_weights


def add_logits(scorer: PromptScorer, logits: torch.Tensor) -> None:
    """Add the logits ``[tokens, vocabulary]`` after the next tokens; those after the last token are ignored."""
    following = torch.from_numpy(scorer.following.astype(np.int64)).to(logits.device)[: len(logits)]
    logits = logits[: len(following)].float()
    own = logits.gather(1, following[:, None])[:, 0] - logits.logsumexp(dim=-1)
    table = torch.log_softmax(logits, dim=-1).cpu().numpy() if needs_table(scorer.job) else None
    scorer.add(own.cpu().numpy(), table)


@attrs.define(eq=False)
class PendingPrompt:
    """A prompt to compute once for all ``runs``; the first ``known`` tokens have the cached ``states``.

    ``is_scored``: some job wants to know about every token of it.
    """

    weights: LoraWeights | None
    tokens: Int32
    images: Sequence[PlacedImage] = ()
    is_scored: bool = False
    runs: list[DecodingRun] = attrs.Factory(list)
    known: int = 0
    states: RowStates = attrs.Factory(RowStates)

    @property
    def names(self) -> TokenNames:
        """Return token names that identify it and each of its prefixes."""
        return name_tokens(self.tokens, self.images)

    @property
    def fresh(self) -> Int32:
        """Return the tokens that are still to be computed."""
        return self.tokens[self.known :]


def collect_prompts(runs: Iterable[DecodingRun], is_scored: Callable[[DecodingRun], bool]) -> list[PendingPrompt]:
    """Group runs with the same prompt and weights."""
    prompts: dict[tuple[int, bytes], PendingPrompt] = {}
    for run in runs:
        new = PendingPrompt(read_weights(run), run.history(), run.images)
        prompt = prompts.setdefault((id(run.job.weights), new.names.tobytes()), new)
        prompt.runs.append(run)
        prompt.is_scored |= is_scored(run)
    return list(prompts.values())


def split_prompts(
    prompts: Sequence[PendingPrompt], cells: int, evenness: tuple[bool, bool], is_apart: bool
) -> Iterator[list[PendingPrompt]]:
    """Yield batches of prompts of like length, the shortest first.

    ``evenness``: whether there is no padding at all, first in whole prompts and then behind cached beginnings.
    ``is_apart``: one adapter in each batch.
    """
    for known, is_even in zip((False, True), evenness, strict=True):
        chosen = [prompt for prompt in prompts if bool(prompt.known) is known]
        for batch in split_batches([len(prompt.fresh) for prompt in chosen], cells):
            alike = [chosen[index] for index in batch]

            def fits(rows: list[int], alike: list[PendingPrompt] = alike, is_even: bool = is_even) -> bool:
                adapters = [alike[row].weights for row in rows]
                lengths = {len(alike[row].fresh) for row in rows}
                is_one = len({id(one) for one in adapters}) == 1
                return (len(lengths) == 1 or not is_even) and (is_one if is_apart else can_mix(adapters))

            order = sorted(range(len(alike)), key=lambda row: (id(alike[row].weights) if is_apart else 0, row))
            yield from ([alike[row] for row in rows] for rows in split_where(order, fits))


class Prefill:
    """Prompts on their way into a cache, all with the same weights in their rows, padded on the left.

    ``width`` columns go through the model in one pass; None means all. The last column goes apart where the states before it
    are to be kept (``keeps_states``).
    """

    def __init__(
        self, prompts: Sequence[PendingPrompt], config: Any, device: torch.device, width: int | None, keeps_states: bool = False
    ) -> None:
        self.prompts: list[PendingPrompt] = list(prompts)
        count, before = (max(lengths) for lengths in zip(*((len(one.fresh), one.known) for one in prompts), strict=True))
        tokens = torch.zeros((len(prompts), count), dtype=torch.long)
        mask = torch.zeros((len(prompts), before + count), dtype=torch.long)
        for row, prompt in enumerate(prompts):
            fresh = prompt.fresh
            tokens[row, count - len(fresh) :] = torch.from_numpy(fresh.astype(np.int64))
            mask[row, before - prompt.known : before] = 1
            mask[row, before + count - len(fresh) :] = 1
        self._tokens = tokens.to(device)
        self.mask: torch.Tensor = mask.to(device)
        self._rows = [ImageRow(one.images, count - len(one.fresh) - one.known) for one in prompts]
        self._positions = self._find_positions()[..., before:]
        self._before, self._at, self._width, self._keeps_states = before, 0, width or count, keeps_states
        self.cache: Any = make_cache(config, [prompt.states for prompt in prompts], before) if before else None
        self.logits: torch.Tensor | None = None

    @property
    def runs(self) -> list[DecodingRun]:
        """Return the runs that begin with these prompts."""
        return [run for prompt in self.prompts for run in prompt.runs]

    @property
    def is_done(self) -> bool:
        """Return whether the last column was computed; ``logits`` are those after it then."""
        return self._at == self._tokens.shape[1]

    @property
    def is_at_last(self) -> bool:
        """Return whether the cache has all columns but the last, which goes apart."""
        return self._keeps_states and self._at == self._tokens.shape[1] - 1 > 0

    def _find_positions(self) -> torch.Tensor:
        """Return the position of each column of each row, ``[3, rows, columns]`` where there are images."""
        plain = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        if not any(prompt.images for prompt in self.prompts):
            return plain
        found = plain.cpu().repeat(3, 1, 1)
        for row, prompt in enumerate(self.prompts):
            places = self.mask[row].nonzero()[:, 0].cpu()
            found[:, row, places] = torch.from_numpy(find_positions(prompt.images, len(prompt.tokens)))
        return found.to(plain.device)

    def advance(self, split: SplitModel) -> Prefilled:
        """Compute the next columns. The weights are on already."""
        last = self._tokens.shape[1] - (self._keeps_states and not self.is_at_last and self._tokens.shape[1] > 1)
        start, end = self._at, min(self._at + self._width, last)
        columns = slice(start, end)
        mask = self.mask[:, : self._before + end]
        done = split.run(
            ImageStates.collect(self._rows, columns, mask.device),
            input_ids=self._tokens[:, columns],
            attention_mask=mask,
            position_ids=self._positions[..., columns],
            cache=self.cache,
            use_cache=end < self._tokens.shape[1] or not all(run.is_over for run in self.runs),
        )
        self.cache, self.logits, self._at = done.cache, done.logits, end
        return Prefilled(done.states, mask[:, self._before + start :].sum(dim=1).tolist())


@attrs.frozen(eq=False)
class Prefilled:
    """The states ``[rows, columns, size]`` of some columns, and how many of them, the last ones, are tokens of each row."""

    states: torch.Tensor
    real: list[int]
