"""A stand-in for vLLM's engine in TuFT: a causal language model in torch, token by token, with the
outputs of vLLM.

Like vLLM it refuses options out of range, counts logprobs after the temperature, ends at the end of
text, at a stop token or at a stop string, and adds one to the seed for each further sample.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch


@dataclasses.dataclass
class LoRARequest:
    """An adapter to register: the fields of vLLM's class that TuFT fills."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclasses.dataclass
class Logprob:
    """How likely a token was, and how many were at least as likely."""

    logprob: float
    rank: int


@dataclasses.dataclass
class Completion:
    """One sample."""

    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str


@dataclasses.dataclass
class Output:
    """The samples, and of each prompt token but the first its logprob and the likeliest."""

    outputs: list[Completion]
    prompt_logprobs: list[dict[int, Logprob] | None] | None


class TorchEngine:
    """The engine that `VLLMSamplingBackend` calls."""

    def __init__(self, model_path: str, max_model_len: int) -> None:
        import transformers

        self.base: Any = transformers.AutoModelForCausalLM.from_pretrained(model_path).eval()
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model_path)
        self.max_model_len = max_model_len
        self.adapters: dict[int, Any] = {}

    def prepare(self) -> None:
        """Do nothing: the model is loaded."""

    def get_api_server_url(self) -> None:
        """Have no server of chat completions."""

    def shutdown(self) -> None:
        """Do nothing: the process ends."""

    def add_lora(self, request: LoRARequest) -> bool:
        """Load an adapter onto a copy of the model."""
        from peft import PeftModel

        self.adapters[request.lora_int_id] = PeftModel.from_pretrained(
            copy.deepcopy(self.base), request.lora_path
        ).eval()
        return True

    def remove_lora(self, lora_int_id: int) -> None:
        """Forget an adapter."""
        self.adapters.pop(lora_int_id, None)

    @torch.no_grad()
    def generate(
        self, prompt: dict[str, list[int]], lora_request: LoRARequest | None = None, **options: Any
    ) -> Output:
        """Sample after a prompt."""
        tokens = prompt["prompt_token_ids"]
        self._check(tokens, options)
        model = self.base if lora_request is None else self.adapters[lora_request.lora_int_id]
        count = options["prompt_logprobs"]
        scored = (
            None if count is None else self._scored(model, tokens, count, options["temperature"])
        )
        samples = [self._sampled(model, tokens, index, options) for index in range(options["n"])]
        return Output(samples, scored)

    def _check(self, tokens: list[int], options: dict[str, Any]) -> None:
        if not tokens:
            raise ValueError("The decoder prompt cannot be empty")
        if len(tokens) >= self.max_model_len:
            raise ValueError(
                f"The prompt of {len(tokens)} tokens is longer than the maximum of "
                f"{self.max_model_len}"
            )
        if max(tokens) >= len(self.tokenizer):
            raise ValueError(f"Token id {max(tokens)} is out of vocabulary")
        if options["max_tokens"] < 1:
            raise ValueError(f"max_tokens must be at least 1, got {options['max_tokens']}.")
        if options["temperature"] < 0:
            raise ValueError(f"temperature must be non-negative, got {options['temperature']}.")
        if not 0 < options["top_p"] <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {options['top_p']}.")
        if options["top_k"] < -1:
            raise ValueError(f"top_k must be 0 (disable), or at least 1, got {options['top_k']}.")

    def _scored(
        self, model: Any, tokens: list[int], count: int, temperature: float
    ) -> list[dict[int, Logprob] | None]:
        logits = model(input_ids=torch.tensor([tokens])).logits[0]
        table = torch.log_softmax(logits / (temperature or 1.0), -1)
        scored: list[dict[int, Logprob] | None] = [None]
        for row, token in zip(table[:-1], tokens[1:], strict=True):
            likeliest = row.topk(count).indices.tolist() if count else []
            scored.append({item: _logprob(row, item) for item in [token, *likeliest]})
        return scored

    def _sampled(
        self, model: Any, tokens: list[int], index: int, options: dict[str, Any]
    ) -> Completion:
        generator = torch.Generator()
        if options["seed"] is None:
            generator.seed()
        else:
            generator.manual_seed(options["seed"] + index)
        sample = Completion([], [], "length")
        for _ in range(min(options["max_tokens"], self.max_model_len - len(tokens))):
            logits = model(input_ids=torch.tensor([[*tokens, *sample.token_ids]])).logits[0, -1]
            table = _distribution(logits, options)
            token = int(
                table.argmax()
                if options["temperature"] == 0
                else torch.multinomial(table.exp(), 1, generator=generator)
            )
            sample.token_ids.append(token)
            sample.logprobs.append({token: _logprob(table, token)})
            if self._is_end(sample.token_ids, options):
                sample.finish_reason = "stop"
                break
        return sample

    def _is_end(self, tokens: list[int], options: dict[str, Any]) -> bool:
        stops = {self.tokenizer.eos_token_id, *options.get("stop_token_ids", ())}
        text = self.tokenizer.decode(tokens) if options.get("stop") else ""
        return tokens[-1] in stops or any(stop in text for stop in options.get("stop", ()))


def _logprob(row: torch.Tensor, token: int) -> Logprob:
    return Logprob(float(row[token]), int((row > row[token]).sum()) + 1)


def _distribution(logits: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    """Return the log-probabilities after temperature, top-k and top-p."""
    if options["temperature"] == 0:
        return torch.log_softmax(logits, -1)
    logits = logits / options["temperature"]
    if options["top_k"] > 0:
        floor = logits.topk(min(options["top_k"], len(logits))).values[-1]
        logits = logits.masked_fill(logits < floor, -torch.inf)
    if options["top_p"] < 1:
        ordered, order = torch.softmax(logits, -1).sort(descending=True)
        dropped = order[ordered.cumsum(0) - ordered >= options["top_p"]]
        logits[dropped] = -torch.inf
    return torch.log_softmax(logits, -1)
