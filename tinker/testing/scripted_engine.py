"""The toy engine with a script, which replaces the samples, log-probabilities or losses that the
engine would return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from tinker.local.engines.inputs import check_tokens
from tinker.local.engines.protocol import (
    Continuation,
    EngineError,
    Float32,
    Int32,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
)
from tinker.local.engines.toy import ToyEngine
from tinker.testing.script import ModelScript, ScriptedSample


class ScriptedEngine(ToyEngine):
    """Engine that trains like the toy engine and takes its samples from the script."""

    def __init__(self, script: ModelScript) -> None:
        super().__init__()
        self._script = script

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        result = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        if not self._script.has_losses:
            return result
        return attrs.evolve(
            result, metrics={**result.metrics, "loss:sum": self._script.take_loss(loss_fn)}
        )

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        if not self._script.has_samples and not self._script.has_logprobs:
            return super().sample(jobs)
        return [self._sample_scripted(job) for job in jobs]

    def _sample_scripted(self, job: SampleJob) -> SampleResult:
        # this is what compute_logprobs sends
        only_scores = job.prompt_logprobs and job.max_tokens <= 1
        if only_scores or not self._script.has_samples:
            return self._with_logprobs(job, super().sample([job])[0])
        if job.topk_sample_logprobs:
            raise EngineError("a scripted sample has no top-k log-probabilities")
        bare = attrs.evolve(job, num_samples=1, max_tokens=1, listener=None)
        result = self._with_logprobs(job, super().sample([bare])[0])
        prompt = job.tokens.tolist()
        answers = [
            self._script.take_sample(prompt, n, job.num_samples) for n in range(job.num_samples)
        ]
        return attrs.evolve(
            result,
            sequences=[self._say(job, index, answer) for index, answer in enumerate(answers)],
        )

    def _with_logprobs(self, job: SampleJob, result: SampleResult) -> SampleResult:
        if result.prompt_logprobs is None:
            return result
        values = self._script.take_logprobs(job.tokens.tolist())
        if values is None:
            return result
        return attrs.evolve(result, prompt_logprobs=np.array([np.nan, *values], np.float32))

    def _say(self, job: SampleJob, index: int, answer: ScriptedSample) -> Continuation:
        tokens = np.array(answer.tokens[: job.max_tokens], np.int32)
        logprobs = (
            self._score(job, tokens)
            if answer.logprobs is None
            else np.array(answer.logprobs[: len(tokens)], np.float32)
        )
        reason = answer.stop_reason or ("stop" if len(tokens) == len(answer.tokens) else "length")
        for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist()), start=1):
            is_last = place == len(tokens)
            if job.listener is not None and not job.listener.take(
                index, token, logprob, reason if is_last else None
            ):
                return Continuation(
                    tokens=tokens[:place], logprobs=logprobs[:place], stop_reason=reason
                )
        return Continuation(tokens=tokens, logprobs=logprobs, stop_reason=reason)

    def _score(self, job: SampleJob, tokens: Int32) -> Float32:
        """Return the log-probabilities that the weights assign to the tokens of a response."""
        check_tokens("the scripted response", tokens, self._vocabulary)
        whole = SampleJob(
            tokens=np.concatenate([job.tokens, tokens]),
            weights=job.weights,
            max_tokens=1,
            seed=0,
            prompt_logprobs=True,
        )
        scored = super().sample([whole])[0].prompt_logprobs
        assert scored is not None
        return scored[len(job.tokens) :]
