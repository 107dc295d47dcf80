"""The samples in progress of one engine: prompts that wait, rows that draw token by token, and jobs that end.

A step draws one token of every row, and computes at most one batch of prompts, whose first tokens it draws. A prompt that is
cached but for its last token is a row from the start. Rows of like length share a cache, whatever their adapters.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import torch

from tinker.local.engines.batches import is_alike
from tinker.local.engines.protocol import SampleJob, SampleResult
from tinker.local.engines.runs import DecodingRun, PromptScorer, Work
from tinker.local.engines.torch.head import WHOLE_LOGITS, SplitModel, chunk_cells, split_positions
from tinker.local.engines.torch.image_rows import TokenNames, name_tokens
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.mixture import Mixer, Mixture, RowsApart, can_mix
from tinker.local.engines.torch.prefill import (
    PendingPrompt,
    Prefill,
    Prefilled,
    add_logits,
    collect_prompts,
    split_prompts,
)
from tinker.local.engines.torch.prefixes import SHORTEST, Prefixes
from tinker.local.engines.torch.rows import (
    RowGroup,
    extend,
    has_columns,
    has_states,
    make_cache,
    read_row,
    select_rows,
)

MAX_PREFILL_TOKENS = 2**13  # of the prompts that are computed together
PIECE_TOKENS = 2**11  # of one pass; samples that run, and training, wait for it
PROBE = 8  # tokens, with which it is tried whether a model can continue
SLACK = 64  # tokens that each row can draw after another one was let in, before there may be too many


@attrs.define(eq=False)
class Parts:
    """The parts of an engine that samples share: the model, the adapters of each row, and the prefix cache.

    ``keeps_prefixes``: the model can continue from states that were kept.
    ``is_apart`` becomes true when the model turns out not to compute rows of several adapters in one pass.
    """

    model: Any
    split: SplitModel
    mixer: Mixer
    prefixes: Prefixes
    start: Callable[[SampleJob], Work]
    keeps_prefixes: bool = True
    is_apart: bool = False

    @property
    def config(self) -> Any:
        """Return the settings of the text model."""
        return self.model.config.get_text_config(decoder=True)


@torch.no_grad()
def can_continue(split: SplitModel, config: Any, device: torch.device) -> bool:
    """Return whether a model that gets some tokens, and the others with states that were kept, computes as with all at once."""
    tokens, half = torch.arange(PROBE, device=device)[None], PROBE // 2
    try:
        whole = split.run(input_ids=tokens, use_cache=False).logits.float()
        first = split.run(input_ids=tokens[:, :half], use_cache=True)
        kept = read_row(first.cache, 0, torch.arange(half, device=device), half)
        cache, mask, positions = make_cache(config, [kept], half), torch.ones_like(tokens), tokens[:, half:]
        inputs: dict[str, Any] = {"input_ids": positions, "attention_mask": mask, "position_ids": positions, "use_cache": True}
        rest = split.run(cache=cache, **inputs).logits.float()
        return bool(torch.allclose(rest, whole, rtol=0, atol=0.02 * float(whole.abs().max())))
    except Exception:  # noqa: BLE001 - whatever an unknown model does, nothing is kept of it then
        return False


class TorchBatch:
    """A SampleBatch of a torch engine."""

    def __init__(self, parts: Parts, cache: Any, limit: int) -> None:
        self._parts, self._limit = parts, limit
        self._is_whole, self._keeps = not has_columns(cache), parts.keeps_prefixes
        self._evenness = has_states(cache), self._is_whole
        self._works: dict[object, Work] = {}
        self._owners: dict[DecodingRun, Work] = {}
        self._pending: list[DecodingRun] = []
        self._prompts: list[list[PendingPrompt]] = []
        self._prefill: Prefill | None = None
        self._scorers: dict[DecodingRun, PromptScorer] = {}
        self._groups: list[RowGroup] = []

    @property
    def tokens(self) -> int:
        return sum(run.length for run in self._owners if not run.is_over)

    def add(self, ticket: object, job: SampleJob) -> None:
        work = self._works[ticket] = self._parts.start(job)
        self._owners.update(dict.fromkeys(work.runs, work))
        self._pending += work.runs

    def drop(self, ticket: object) -> None:
        self._forget(ticket)
        self._regroup()

    def _forget(self, ticket: object) -> None:
        work = self._works.pop(ticket, None)
        for run in [] if work is None else work.runs:
            run.end()
            self._owners.pop(run, None)

    @torch.no_grad()
    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        batch = self._next_prefill()
        for group in list(self._groups):
            self._guard(group.runs, partial(self._advance, group))
        if batch is not None:
            self._guard(batch.runs, partial(self._begin, batch))
        ended = self._collect()
        self._regroup()
        self._pause()
        return ended

    def _guard(self, runs: Sequence[DecodingRun], work: Callable[[], None]) -> None:
        """Run ``work``; a failure fails only these runs."""
        try:
            work()
        except RowsApart:
            self._parts.is_apart = True
            self._put_back(list(runs))
        except Exception as error:  # noqa: BLE001 - whatever torch raises, the other groups go on
            for run in runs:
                run.error = run.error or error

    def _put_back(self, runs: Sequence[DecodingRun]) -> None:
        """Requeue rows first, to continue where they are; their cache entries are computed again."""
        chosen = set(runs)
        for group in self._groups:
            group.keep([row for row, run in enumerate(group.runs) if run not in chosen])
        self._groups = [group for group in self._groups if group.runs]
        self._pending[:0] = [run for run in runs if run in self._owners]

    # Prompts

    def _is_unscored(self, run: DecodingRun) -> bool:
        work = self._owners.get(run)
        return work is not None and work.scores is None and run.index == 0

    def _next_prompts(self) -> list[PendingPrompt]:
        if not self._prompts and self._pending:
            prompts = collect_prompts(self._admit(), self._is_unscored)
            scored = [prompt for prompt in prompts if prompt.is_scored]
            others = [self._recall(prompt) for prompt in prompts if not prompt.is_scored]
            others = [prompt for prompt in others if not self._enters(prompt)]
            self._regroup()
            for chosen, cells in ((others, MAX_PREFILL_TOKENS), (scored, self._score_cells)):
                self._prompts += split_prompts(chosen, cells, self._evenness, self._parts.is_apart)
        return [prompt for prompt in self._prompts.pop(0) if self._is_wanted(prompt)] if self._prompts else []

    @property
    def _score_cells(self) -> int:
        """Return how many tokens of several scored prompts are computed together."""
        return min(MAX_PREFILL_TOKENS, WHOLE_LOGITS // int(self._parts.config.vocab_size))

    def _next_prefill(self) -> Prefill | None:
        """Return the prefill in progress, or start the next one."""
        if self._prefill is not None and not any(map(self._is_wanted, self._prefill.prompts)):
            self._prefill = None
        if self._prefill is None and (batch := self._next_prompts()):
            width = max(1, PIECE_TOKENS // len(batch)) if self._keeps else None
            keeps_states = self._keeps and self._is_whole and any(map(self._is_kept, batch))
            self._prefill = Prefill(batch, self._parts.config, self._parts.model.device, width, keeps_states)
            self._scorers = {run: PromptScorer(run.job) for run in self._prefill.runs if self._is_unscored(run)}
        return self._prefill

    def _is_wanted(self, prompt: PendingPrompt) -> bool:
        return any(not run.is_over or self._is_unscored(run) for run in prompt.runs)

    def _is_kept(self, prompt: PendingPrompt) -> bool:
        return len(prompt.tokens) > SHORTEST and any(not run.is_over for run in prompt.runs)

    def _admit(self) -> list[DecodingRun]:
        """Return the runs for which there is room, in the order of arrival; one at least when nothing runs."""
        rows = [run for group in self._groups for run in group.runs]
        room = self._limit - sum(run.length + SLACK for run in rows)
        admitted: list[DecodingRun] = []
        waiting = [run for run in self._pending if not run.is_over or self._is_unscored(run)]
        for run in waiting:
            room -= run.length + SLACK
            if room < 0 and (rows or admitted):
                break
            admitted.append(run)
        self._pending = waiting[len(admitted) :]
        return admitted

    def _recall(self, prompt: PendingPrompt) -> PendingPrompt:
        """Find the cached prefix of a prompt. At least the last token is computed."""
        if self._keeps:
            prompt.known, prompt.states = self._parts.prefixes.find(prompt.weights, prompt.names[:-1], whole=self._is_whole)
        return prompt

    def _enters(self, prompt: PendingPrompt) -> bool:
        """Begin a prompt as rows if all but its last token is cached; return whether it is."""
        if not prompt.known or len(prompt.fresh) > 1 or prompt.images:
            return False
        self._guard(prompt.runs, partial(self._enter, prompt))
        return True

    def _enter(self, prompt: PendingPrompt) -> None:
        mask = torch.ones((len(prompt.runs), prompt.known), dtype=torch.long, device=self._parts.model.device)
        cache = make_cache(self._parts.config, [prompt.states], prompt.known)
        select_rows(cache, mask.new_zeros(len(mask)))
        self._groups.append(RowGroup(prompt.runs, cache, mask, mask.new_full((len(mask),), int(prompt.tokens[-1]))))

    def _begin(self, batch: Prefill) -> None:
        """Compute and score the next piece of prompts; after the last piece their runs start."""
        self._prefill = None  # unless all goes well
        with self._parts.mixer.activate(Mixture.make([prompt.weights for prompt in batch.prompts])):
            done = batch.advance(self._parts.split)
            self._score(batch, done)
        if batch.is_at_last:
            self._remember_all(batch, 1)
            self._begin(batch)
            return
        if not batch.is_done:
            self._prefill = batch
            return
        for run, scorer in self._scorers.items():
            if run in self._owners:
                self._owners[run].scores = scorer.result()
        runs = [run for run in batch.runs if not run.is_over]
        if runs:
            self._groups.append(self._start_group(batch, runs))

    def _score(self, batch: Prefill, done: Prefilled) -> None:
        """Pass the logits of a piece to the scorers, some columns at a time."""
        count, vocabulary = done.states.shape[1], int(self._parts.config.vocab_size)
        cells = chunk_cells(done.states.device)
        scorers = [[self._scorers[run] for run in prompt.runs if run in self._scorers] for prompt in batch.prompts]
        for part in split_positions(count, len(scorers), vocabulary, cells) if any(scorers) else ():
            logits = self._parts.split.logits(done.states[:, part])
            for row, mine in enumerate(scorers):
                first = max(0, count - done.real[row] - part.start)  # padding comes before it
                for scorer in mine:
                    add_logits(scorer, logits[row, first:])

    def _start_group(self, batch: Prefill, runs: list[DecodingRun]) -> RowGroup:
        assert batch.logits is not None
        prompts, rows = batch.prompts, [row for row, one in enumerate(batch.prompts) for run in one.runs if not run.is_over]
        if self._keeps and not self._is_whole:
            self._remember_all(batch)
        chosen = torch.tensor(rows, device=batch.mask.device)
        if rows != list(range(len(prompts))):
            select_rows(batch.cache, chosen)
        tokens = extend(runs, batch.logits[chosen])
        return RowGroup(runs, batch.cache, batch.mask[chosen], tokens)

    def _remember_all(self, batch: Prefill, but: int = 0) -> None:
        """Add prompts to the prefix cache, without their last tokens where those were not computed."""
        mask = batch.mask[:, : batch.mask.shape[1] - but]
        group = RowGroup([prompt.runs[0] for prompt in batch.prompts], batch.cache, mask, mask[:, -1])
        for row, prompt in enumerate(batch.prompts):
            self._remember(group, row, prompt.weights, prompt.names[: len(prompt.tokens) - but])

    def _remember(self, group: RowGroup, row: int, weights: LoraWeights | None, names: TokenNames) -> None:
        self._parts.prefixes.add(weights, names, partial(group.read, row), whole=self._is_whole)

    # Rows

    def _advance(self, group: RowGroup) -> None:
        """Draw the next token of each row of a group; sequences that end are added to the prefix cache."""
        with self._parts.mixer.activate(group.mixture):
            group.tokens = extend(group.runs, self._parts.split.advance(group.cache, **group.inputs()))
        if self._keeps:
            for row, run in enumerate(group.runs):
                if run.is_over and run.error is None and run in self._owners:
                    self._remember(group, row, group.weights[row], name_tokens(run.history()[:-1], run.images))

    def _regroup(self) -> None:
        """Drop finished rows, and merge groups of similar lengths."""
        groups, self._groups = self._groups, []
        for group in groups:
            group.keep([row for row, run in enumerate(group.runs) if not run.is_over])
            if group.runs and not any(self._join(other, group) for other in self._groups):
                self._groups.append(group)

    def _join(self, group: RowGroup, other: RowGroup) -> bool:
        """Merge a group into another one of similar lengths; return whether it was merged."""
        weights = [*group.weights, *other.weights]
        is_one = len({id(one) for one in weights}) == 1
        is_fit = is_one if self._parts.is_apart else can_mix(weights)
        if not is_fit or not is_alike([run.length for run in (*group.runs, *other.runs)], self._free_padding(group)):
            return False
        group.join(other)
        return True

    def _free_padding(self, group: RowGroup) -> int:
        """Return how many cache columns are read in the time of one more pass over the model's weights."""
        layers = [layer.keys for layer in group.cache.layers if getattr(layer, "keys", None) is not None]
        numbers = sum(2 * keys.shape[1] * keys.shape[3] for keys in layers)
        return int(self._parts.model.num_parameters() // max(1, numbers))

    def _pause(self) -> None:
        """Requeue the newest job while the rows hold too many tokens; it continues when there is room."""
        rows = {run: None for group in self._groups for run in group.runs}
        held = sum(run.length for run in rows)
        for work in reversed(self._works.values()):
            mine = [run for run in work.runs if run in rows]
            if held <= self._limit or len(mine) == len(rows):
                return
            held -= sum(run.length for run in mine)
            for run in mine:
                del rows[run]
            self._put_back(mine)

    def _collect(self) -> list[tuple[object, SampleResult | Exception]]:
        found = [(ticket, work.outcome()) for ticket, work in self._works.items()]
        ended = [(ticket, outcome) for ticket, outcome in found if outcome is not None]
        for ticket, _ in ended:
            self._forget(ticket)
        return ended
