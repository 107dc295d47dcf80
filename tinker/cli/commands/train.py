"""``tinker train``: the command, the loop over the steps of a run, and what it reports."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

import tinker
from tinker._chat import read_options
from tinker._tokenizers import resolve
from tinker.cli import clients, output
from tinker.cli.clients import RESUMED, TRAINED_CHECKPOINT, Capacity
from tinker.cli.options import DataFile, GlobalOptions, command
from tinker.cli.output import INTERRUPTED, Advance, CommandFailed, note
from tinker.cli.training import (
    GRPO,
    Bookmark,
    Plan,
    Position,
    Preferences,
    Recipe,
    Reward,
    RunOptions,
    Sent,
    StepResult,
    Supervised,
    check_lines,
    option_of,
    read_examples,
    read_prompts,
)

if TYPE_CHECKING:
    from tinker._session.telemetry import Telemetry


class RunReport:
    """The progress of one run. ``log`` is an open file that also gets every line of JSON."""

    def __init__(
        self, options: GlobalOptions, metric: str, steps: int, log: TextIO | None = None
    ) -> None:
        self._options, self._steps, self._log = options, steps, log
        self.metric: str = metric
        self.facts: Mapping[str, Any] = {}
        self._advance: Advance | None = None
        self._telemetry: Telemetry | None = None
        self._begun = time.monotonic()
        self._tokens = 0
        # of each step, how many answers had another reward than others to their prompt
        self._learned: list[float] = []
        self.curve: list[tuple[float, float]] = []
        self.evaluations: list[tuple[float, float]] = []

    def begin(
        self,
        advance: Advance,
        facts: Mapping[str, Any],
        first: int,
        telemetry: Telemetry | None = None,
    ) -> None:
        """Report the start. ``first`` is the number of steps that are done already. ``telemetry``
        sends metrics.
        """
        self._telemetry, self._advance, self._begun, self.facts = (
            telemetry,
            advance,
            time.monotonic(),
            facts,
        )
        self._record("start", {**facts, "steps": self._steps, "first_step": first + 1})
        advance(first)

    def add_step(self, done: int, learning_rate: float, result: StepResult) -> None:
        """Report a step, with the average speed so far."""
        self._tokens += result.tokens
        seconds = time.monotonic() - self._begun
        rate = self._tokens / seconds if seconds else 0.0
        value = result.metrics[self.metric]
        self._learned.append(result.metrics.get("learned", 1))
        self.curve.append((done, value))
        record = {
            "step": done,
            "steps": self._steps,
            **result.metrics,
            "learning_rate": learning_rate,
            "tokens": result.tokens,
        }
        self._record(
            "step", {**record, "tokens_per_second": round(rate, 1), "seconds": round(seconds, 3)}
        )
        self._send(done, {**result.metrics, "learning_rate": learning_rate})
        text = f"{self._describe(result.metrics)}, {rate:,.0f} tokens/s"
        if self._advance is not None:
            self._advance(done, description=text)
        if not sys.stderr.isatty():
            note(self._options, f"step {done}/{self._steps} {text}")

    def add_evaluation(self, done: int, metrics: Mapping[str, float]) -> None:
        """Report the loss on the evaluation file, and what else is measured there."""
        self.evaluations.append((done, metrics["loss"]))
        self._record("evaluation", {"step": done, **metrics})
        self._send(done, {f"evaluation {name}": value for name, value in metrics.items()})
        note(self._options, f"step {done}/{self._steps} evaluation {self._describe(metrics)}")

    def _describe(self, metrics: Mapping[str, float]) -> str:
        """Return the loss or the reward, and of pairs how they compare."""
        names = [name for name in (self.metric, "margin", "accuracy") if name in metrics]
        return ", ".join(f"{name} {output.format_metric(metrics[name])}" for name in names)

    def summarize_evaluations(self) -> list[tuple[str, str]]:
        """Return the property with the first, last and lowest loss on the evaluation file; nothing
        if there is none.
        """
        if not self.evaluations:
            return []
        at, least = min(self.evaluations, key=lambda one: one[1])
        first, last, best = (
            output.format_metric(loss)
            for loss in (self.evaluations[0][1], self.evaluations[-1][1], least)
        )
        return [("Evaluation loss", f"{first} -> {last} (best {best} after step {at:,.0f})")]

    def add_save(self, done: int, path: str) -> None:
        """Report a checkpoint."""
        self._record("save", {"step": done, "checkpoint_path": path})
        note(self._options, f"step {done}/{self._steps} saved {path}")

    def explain_resume(self, done: int, note: str, path: str | None) -> None:
        """Explain how to continue the run: from the checkpoint, if one is given."""
        how = "run the same command with --resume" if path is None else f"use --from {path}"
        output.say(f"Saved after step {done} of {self._steps}.{note} To continue, {how}.")

    def explain_divergence(self, saved: int, path: str | None) -> None:
        """Explain that the weights were not saved, and how to start again."""
        output.say(
            "The weights were not saved. Run the command again with a lower --learning-rate."
        )
        if path is not None:
            output.say(
                f"To start from the checkpoint after step {saved}, if it is "
                f"good, add --from {path}."
            )

    def end(self, facts: Mapping[str, Any]) -> None:
        """Report the result as JSON. The caller prints the table."""
        self._record("result", facts)
        if self._learned and not any(self._learned):
            output.say(
                "Nothing was learned: in every step, all answers to a prompt had the same reward."
            )

    def draw(self, file: Path, name: str) -> None:
        """Draw the curves into an SVG file and, where the output is for people, as text."""
        evaluations = {"evaluation": self.evaluations} if self.evaluations else {}
        output.show_chart(self._options, {self.metric: self.curve, **evaluations}, name, file)

    def _send(self, done: int, metrics: Mapping[str, float]) -> None:
        """Send metrics to the server's page."""
        if self._telemetry is not None:
            about = {"training_run_id": self.facts["training_run_id"], "step": done}
            self._telemetry.log("metrics", {**about, **metrics})

    def _record(self, kind: str, value: Mapping[str, Any]) -> None:
        """Write a line of JSON to the output and the log, and flush both."""
        record = {"type": kind, **value}
        if self._options.format == "json":
            output.show_json(record, indent=None)
            sys.stdout.flush()
        if self._log is not None:
            self._log.write(json.dumps(record, default=str) + "\n")
            self._log.flush()


_NOTICE = b"\nWaiting for the steps already sent, then saving. Ctrl-C again stops at once.\n"


@dataclass
class _Pending:
    """A step in flight, with the evaluation and the save that follow it."""

    done: int
    sent: Sent[StepResult]
    evaluation: Sent[dict[str, float]] | None = None
    saving: tinker.APIFuture[tinker.types.SaveWeightsResponse] | None = None


@dataclass
class Loop:
    """The loop of one run, from its first step or from a checkpoint."""

    _plan: Plan
    _options: RunOptions
    _recipe: Recipe
    _training: tinker.TrainingClient
    _report: RunReport
    _bookmark: Bookmark
    _origin: str | None  # the checkpoint that the run started from
    _ahead: deque[_Pending] = field(default_factory=lambda: deque[_Pending](), init=False)
    _done: int = field(default=0, init=False)
    _saved: int = field(default=0, init=False)
    _path: str | None = field(default=None, init=False)  # of the last checkpoint

    def run(self, first: int) -> None:
        """Take the steps from ``first`` on. On a signal or a failure, save first; then raise Exit
        or the failure.
        """
        self._done = self._saved = first
        with _watch_signals() as stop:
            try:
                self._take_steps(first, stop)
            except KeyboardInterrupt:
                self._explain_resume()
                raise
            except Exception as error:
                if isinstance(error, tinker.RequestFailedError) and "diverged" in str(error):
                    self._receive_rest()
                    self._report.explain_divergence(self._saved, self._path)
                else:
                    self._save_after_failure()
                raise
            if stop.signal_number is not None and self._done < self._recipe.steps:
                self._save()
                self._explain_resume()
                raise click.exceptions.Exit(
                    INTERRUPTED if stop.signal_number == signal.SIGINT else 128 + signal.SIGTERM
                )

    def _take_steps(self, first: int, stop: _StopRequest) -> None:
        if first == 0 and (evaluation := self._recipe.evaluate(self._training)) is not None:
            self._report.add_evaluation(0, evaluation.wait())
        for step in range(first, self._recipe.steps):
            if stop.signal_number is not None:
                break
            pending = _Pending(step + 1, self._recipe.send(self._training, step))
            if self._recipe.steps_ahead:
                self._send_rest(pending)
            self._ahead.append(pending)
            self._finish_all_but(self._recipe.steps_ahead)
        self._finish_all_but(0)

    def _send_rest(self, pending: _Pending) -> None:
        """Send the evaluation and the save that are due after a step."""
        done, is_last = pending.done, pending.done == self._recipe.steps
        if is_last or _is_due(done, self._options.eval_every):
            pending.evaluation = self._recipe.evaluate(self._training)
        # the end of the run is saved anyway
        if not is_last and _is_due(done, self._options.save_every):
            pending.saving = self._save_state(done)

    def _finish_all_but(self, count: int) -> None:
        while len(self._ahead) > count:
            self._finish(self._ahead[0])
            self._ahead.popleft()

    def _finish(self, pending: _Pending) -> None:
        result = pending.sent.wait()
        self._done = pending.done
        self._report.add_step(
            self._done, self._plan.learning_rate_at(self._done - 1, self._recipe.steps), result
        )
        if not self._recipe.steps_ahead:
            self._send_rest(pending)
        if pending.evaluation is not None:
            self._report.add_evaluation(self._done, pending.evaluation.wait())
        if pending.saving is not None:
            self._keep(self._done, pending.saving.result().path)

    def _save_state(self, done: int) -> tinker.APIFuture[tinker.types.SaveWeightsResponse]:
        return self._training.save_state(
            f"{self._plan.name}-{done:06d}", keep_last=self._options.keep_last
        )

    def _save(self) -> None:
        if self._done > self._saved:
            self._keep(self._done, self._save_state(self._done).result().path)

    def _keep(self, done: int, path: str) -> None:
        self._saved, self._path = done, path
        self._bookmark.write(self._plan, Position(done, path, self._recipe.steps, self._origin))
        self._report.add_save(done, path)

    def _explain_resume(self, note: str = "") -> None:
        if self._saved:
            self._report.explain_resume(
                self._saved, note, None if self._bookmark.can_resume else self._path
            )

    def _save_after_failure(self) -> None:
        """Wait for the other requests, save the run, and explain how to continue. A failed save is
        printed, not raised.
        """
        is_exact = not self._receive_rest()
        try:
            self._save()
        except tinker.TinkerError as error:
            output.say(f"The weights could not be saved: {output.read_message(error)}")
        self._explain_resume("" if is_exact else " A later step is partly in the checkpoint.")

    def _receive_rest(self) -> bool:
        """Wait for all requests in flight; return whether the optimizer took a step after the one
        that failed.
        """
        was_applied = False
        for pending in self._ahead:
            rest = [*(pending.evaluation.futures if pending.evaluation else ())]
            rest += [pending.saving] if pending.saving else []
            failures = [future.exception() for future in (*rest, *pending.sent.futures)]
            was_applied |= bool(self._recipe.steps_ahead) and failures[-1] is None
        self._ahead.clear()
        return was_applied


def _is_due(done: int, every: int | None) -> bool:
    return every is not None and done % every == 0


class _StopRequest:
    """The first signal that was received, if any."""

    signal_number: int | None = None

    def take(self, number: int, _: FrameType | None) -> None:
        """Store the signal; raise KeyboardInterrupt for a second one."""
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number
        os.write(2, _NOTICE)  # not print: the handler may have interrupted one


@contextmanager
def _watch_signals() -> Generator[_StopRequest]:
    """Store signals during the block instead of exiting. Only the main thread receives signals."""
    request = _StopRequest()
    numbers = (
        (signal.SIGINT, signal.SIGTERM)
        if threading.current_thread() is threading.main_thread()
        else ()
    )
    before = {number: signal.signal(number, request.take) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


_NO_TEMPLATE = (
    "The tokenizer has no chat template: messages become lines such as `User: Hi`, and `tinker "
    "chat` writes them so too."
)
_NO_PENALTY = " GRPO has no KL penalty: see 'Stay near a reference model' in the documentation."
_FOR_GRPO = ("group_size", "max_tokens", "temperature", "stop")


@command(
    "tinker train examples.jsonl --epochs 2 --save-every 50",
    "tinker train examples.jsonl --eval-file held_out.jsonl --plot loss.svg",
    "tinker train pairs.jsonl --dpo --lr 1e-5",
    "tinker train prompts.jsonl --grpo reward.py --group-size 16",
)
def train(options: GlobalOptions, data: DataFile, plan: Plan, run: RunOptions) -> None:
    """Fine-tune a model on DATA, a file with one example per line (- is standard input), and save
    it.

    \b
    {"prompt": "2 + 2 =", "completion": " 4"}     also "answer" or "response"
    {"messages": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello!"}]}
    {"prompt": [MESSAGES], "completion": [MESSAGES]}
    {"text": "To be, or not to be"}
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}
    Files of ShareGPT and Alpaca are read as messages.

    The model learns the answers, not the prompts. The file is checked before anything is created.
    Each step shows the loss per token on its batch, before the model learns from it. At the end,
    two checkpoints are saved: one to continue training, one to sample from.

    Ctrl-C and failures save the run first. Run the same command with --resume to continue with the
    next example.

    With --dpo, a line is a pair of answers, texts or messages, and the model learns to prefer the
    chosen one, compared with the weights that the run starts from:

    \b
    {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    {"chosen": [MESSAGES], "rejected": [MESSAGES]}

    With --grpo, a line needs only a prompt, and your reward function scores the answers:
    reward(answer, example) returns a number, and example is the line as a dict. Each step samples a
    group of answers per prompt and reinforces the better ones.
    """
    source_of = click.get_current_context().get_parameter_source
    given = {
        name for name in Plan._fields if source_of(name) is not click.core.ParameterSource.DEFAULT
    }
    _check_options(plan, run, given)
    job = _TrainingJob(options, data, plan, given, run)
    if run.estimate:
        job.estimate()
    else:
        job.run()


def _check_options(plan: Plan, run: RunOptions, given: Collection[str]) -> None:
    for needed, is_given, names in (
        ("--grpo", plan.grpo, _FOR_GRPO),
        ("--dpo", plan.dpo, ("beta",)),
    ):
        unused = next((name for name in names if name in given), None)
        # a resumed run has the one that it started with
        if unused and not (is_given or run.resume):
            raise click.UsageError(
                f"{option_of(unused)} needs {needed}.{_NO_PENALTY if plan.grpo else ''}"
            )
    if plan.grpo and plan.dpo:
        raise click.UsageError("--dpo and --grpo are two ways to train: give one of them.")
    if plan.grpo and "max_length" in given:
        raise click.UsageError(
            "--max-length cannot be used with --grpo: prompts are not truncated. "
            "Shorten them in the file."
        )
    if plan.start and "rank" in given:
        raise click.UsageError(
            "--rank cannot be used with --from: the checkpoint's adapter keeps its rank."
        )
    read_options(plan.chat_template_kwargs)
    clients.check_start(plan.model, plan.start)
    if plan.grpo and (run.eval_file or run.estimate):
        raise click.UsageError("--eval-file and --estimate cannot be used with --grpo.")
    if run.keep_last and not run.save_every:
        raise click.UsageError("--keep-last needs --save-every.")
    if run.eval_every and not run.eval_file:
        raise click.UsageError("--eval-every needs --eval-file.")


class _TrainingJob:
    """A run that is not created yet. The constructor checks the files, the options
    and the model.
    """

    def __init__(
        self,
        options: GlobalOptions,
        data: Path,
        plan: Plan,
        given: Collection[str],
        run: RunOptions,
    ) -> None:
        self._options, self._data, self._run = options, data, run
        self._bookmark = _open_bookmark(options, data, plan.name)
        self._plan, self._position = (
            self._bookmark.read(plan, given) if run.resume else (plan, Position())
        )
        self._reward = None if self._plan.grpo is None else Reward(self._plan.grpo)
        files = [data, run.eval_file] if self._reward is None else []
        self._has_chats = True in [
            check_lines(file, is_pairs=self._plan.dpo) for file in files if file is not None
        ]
        self._prices = clients.read_prices(run.prices_path)
        rest = clients.rest_client(options)
        offered = rest.get_server_capabilities().result().supported_models
        self._origin = self._position.origin
        if self._plan.start is not None and not run.resume:
            self._origin = clients.find_path(rest, self._plan.start, to_train=True).tinker_path
        self._start = self._position.checkpoint or self._origin
        self._model = _find_model(rest, self._plan, self._start, offered)
        # fail now if a price is missing
        clients.cost_of(self._prices, {self._model: tinker.usage.TokenCounts()})
        lengths = {
            entry.model_name: entry.max_context_length for entry in offered if entry.model_name
        }
        # some servers train models that they do not list
        self._is_unlisted = bool(lengths) and self._model not in lengths
        self._capacity = Capacity(self._model, lengths.get(self._model))

    def estimate(self) -> None:
        """Show the steps, tokens and cost of the run."""
        recipe = self._read(
            clients.load_tokenizer(self._plan.tokenizer_id or resolve(self._model, None))
        )
        counts = tinker.usage.estimate_training([row.datum() for row in recipe.rows()])
        cost = clients.cost_of(self._prices, {self._model: counts})
        value = {
            "base_model": self._model,
            "steps": recipe.steps,
            "tokens": clients.to_value(counts),
            "cost": cost,
        }
        properties = [
            ("Base Model", self._model),
            ("Steps", str(recipe.steps)),
            *clients.count_properties(self._options, counts, cost),
        ]
        output.show_properties(self._options, value, "Estimate", properties)

    def run(self) -> None:
        """Read the data as tokens, create the run, take its steps and save it."""
        usage, log = tinker.usage.Usage(), self._run.log_path
        # for its checkpoints
        is_home_needed = (
            config := clients.config_of(self._options)
        ).is_local and config.local_dir is None
        self._bookmark.check(
            is_needed=is_home_needed or self._run.resume or self._run.save_every is not None
        )
        with (
            clients.service_client(self._options, reports=True) as service,
            log.open("a", encoding="utf-8") if log else nullcontext() as stream,
        ):
            service.add_observer(usage)
            tokenizer = self._load_tokenizer(service)
            note(
                self._options,
                f"Reading {self._data} with the tokenizer of "
                f"{self._plan.tokenizer_id or self._model}",
            )
            recipe = self._prepare(tokenizer)
            self._announce(recipe.steps)
            self._note_what_is_unusual(recipe.steps)
            report = RunReport(self._options, recipe.metric, recipe.steps, stream)
            metadata = {} if self._plan.name == Plan().name else {"name": self._plan.name}
            if self._run.resume:
                metadata[RESUMED] = clients.parse_path(self._position.checkpoint).training_run_id
            training = self._create_client(service, self._start, metadata).result()
            if isinstance(recipe, Preferences):
                at_start = (
                    self._create_client(service, self._origin, {}) if self._run.resume else training
                )
                recipe.compute_references(at_start)
            self._take_steps(training, recipe, report)
            self._finish(training, report, usage)

    def _announce(self, steps: int) -> None:
        """Print what starts, and which unfinished run it replaces."""
        if self._run.resume:
            note(self._options, f"Continuing after step {self._position.step} of {steps}")
            return
        if (unfinished := self._bookmark.find()) is not None:
            output.say(
                "The first checkpoint of this run replaces an unfinished run "
                f"of this name ({unfinished})."
            )
            output.say("To continue that run instead, use --resume.")
        note(
            self._options, f"Creating a run of {self._model}, {output.format_count(steps, 'step')}"
        )

    def _note_what_is_unusual(self, steps: int) -> None:
        """Print what is allowed, and seldom meant."""
        if self._plan.max_steps is not None and steps < self._plan.max_steps:
            whole = output.format_count(steps, "step")
            output.say(
                f"The data ends after {whole}, before --max-steps {self._plan.max_steps}; for "
                "more, increase --epochs."
            )
        if (
            self._run.eval_file is not None
            and self._run.eval_file.resolve() == self._data.resolve()
        ):
            output.say(
                "--eval-file is the training file: its loss does not tell how well the model does "
                "on other examples."
            )

    def _load_tokenizer(self, service: tinker.ServiceClient) -> Any:
        """Load the tokenizer given, else the one that the server names for the model, else the one
        of the model's name.
        """
        if self._plan.tokenizer_id is None:
            try:
                with clients.explain_refusal(service, self._model, TRAINED_CHECKPOINT):
                    return clients.find_tokenizer(
                        service.create_sampling_client(base_model=self._model).result(), None
                    )
            except (tinker.APIStatusError, tinker.RequestFailedError):
                if self._is_unlisted:  # other servers may train a model without sampling it
                    raise
        return clients.load_tokenizer(self._plan.tokenizer_id or resolve(self._model, None))

    def _prepare(self, tokenizer: Any) -> Recipe:
        prompts = (
            []
            if self._reward is None
            else read_prompts(self._data, tokenizer, self._plan, self._capacity)
        )
        has_chats = self._has_chats or any(prompt.is_chat for prompt in prompts)
        if has_chats and not clients.has_template(tokenizer):
            note(self._options, _NO_TEMPLATE)
        return (
            GRPO(self._plan, prompts, self._reward, tokenizer)
            if self._reward
            else self._read(tokenizer)
        )

    def _read(self, tokenizer: Any) -> Supervised:
        """Read the examples, and those of the evaluation file."""
        plan, options = self._plan, read_options(self._plan.chat_template_kwargs)
        rows, held_out = (
            []
            if file is None
            else read_examples(
                file, tokenizer, plan.max_length, self._capacity, options, is_pairs=plan.dpo
            )
            for file in (self._data, self._run.eval_file)
        )
        return (Preferences if plan.dpo else Supervised)(plan, rows, held_out)

    def _create_client(
        self, service: tinker.ServiceClient, start: str | None, metadata: dict[str, str]
    ) -> tinker.TrainingClient:
        plan, given = self._plan, metadata or None
        if start is not None:
            return clients.train_from(service, start, plan.model, given)
        return service.create_lora_training_client(
            self._model,
            rank=plan.rank,
            seed=plan.seed,
            train_unembed=plan.train_unembed,
            user_metadata=given,
        )

    def _take_steps(
        self, training: tinker.TrainingClient, recipe: Recipe, report: RunReport
    ) -> None:
        facts = {
            "training_run_id": training.model_id,
            "base_model": self._model,
            "examples": recipe.examples,
        }
        with output.progress(self._options, f"Training {self._model}", recipe.steps) as advance:
            report.begin(advance, facts, self._position.step, training.get_telemetry())
            Loop(self._plan, self._run, recipe, training, report, self._bookmark, self._origin).run(
                self._position.step
            )

    def _finish(
        self, training: tinker.TrainingClient, report: RunReport, usage: tinker.usage.Usage
    ) -> None:
        """Save both checkpoints, remove the resume file, and show the result."""
        name = self._plan.name
        state, sampler = training.save_state(name), training.save_weights_for_sampler(name)
        path, sampler_path = state.result().path, sampler.result().path
        self._bookmark.remove()
        cost = clients.cost_of(self._prices, usage.by("base_model"))
        values = [value for _, value in report.curve]
        facts = {
            **report.facts,
            "steps": len(values),
            {"loss": "losses", "reward": "rewards"}[report.metric]: values,
            "checkpoint_path": path,
            "sampler_path": sampler_path,
            "tokens": clients.to_value(usage.total),
            "cost": cost,
        }
        report.end(facts)
        if self._run.plot is not None:
            report.draw(self._run.plot, name)
        if self._options.format == "table":
            ends = [values[0], values[-1]] if len(values) > 1 else values
            earlier = f", after {self._position.step} earlier" if self._run.resume else ""
            properties = [
                ("Training Run ID", training.model_id),
                ("Steps", f"{len(values)}{earlier}"),
                *(
                    [(report.metric.capitalize(), " -> ".join(map(output.format_metric, ends)))]
                    if values
                    else []
                ),
                *report.summarize_evaluations(),
                ("To train on", path),
                ("To sample from", sampler_path),
                *clients.count_properties(self._options, usage.total, cost),
            ]
            output.show_properties(self._options, facts, "Training", properties)
        if report.metric == "loss" and not self._run.resume and values and values[-1] > values[0]:
            from tinker.local.engines import PACKAGED_MODEL

            advice = (
                " For this model, start with 1e-3 to 1e-2." if self._model == PACKAGED_MODEL else ""
            )
            output.say(f"The loss did not fall: try another --learning-rate (--lr).{advice}")


def _open_bookmark(options: GlobalOptions, data: Path, name: str) -> Bookmark:
    config = clients.config_of(options)
    server = config.base_url
    if config.is_local and config.local_dir is not None:  # each folder is a server of its own
        server = f"{server} in {config.local_dir.expanduser().resolve()}"
    return Bookmark(config.credentials_file.parent / "train", server, data, name)


def _find_model(
    rest: tinker.RestClient,
    plan: Plan,
    start: str | None,
    offered: Sequence[tinker.types.SupportedModel],
) -> str:
    """Return the model to train: the given one, that of the checkpoint to start from, or the first
    of the server.
    """
    if plan.model is not None:
        return plan.model
    if start is not None:
        return rest.get_weights_info_by_tinker_path(start).result().base_model
    for entry in offered:
        if entry.model_name is not None and entry.trainable is not False:
            return entry.model_name
    raise CommandFailed("The server offers no model to train")
