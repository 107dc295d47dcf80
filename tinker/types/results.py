"""What is returned: results, samples as they arrive, candidates, owners, links to the console."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeAlias, cast
from urllib.parse import quote

import attrs
from tinker_wire import models
from tinker_wire.models import StopReason

from tinker.types._values import AttrsValue, FrozenValue, SuggestsNames, explain_changes, np
from tinker.types.params import ParsedCheckpointTinkerPath
from tinker.types.tensor_data import TensorData, show_tokens
from tinker_records import FieldInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RequestErrorCategory(enum.StrEnum):
    """The known values of ``RequestFailedError.category``, which is text; each equals its text.

    >>> RequestErrorCategory.User == "user"
    True
    """

    Unknown = "unknown"
    Server = "server"
    User = "user"


CONSOLE = "https://tinker.thinkingmachines.ai"


def session_url(session_id: str | None) -> str:
    """Return the page of a session, the list of sessions for None."""
    return f"{CONSOLE}/sessions" if session_id is None else f"{CONSOLE}/sessions/{session_id}"


def training_run_url(training_run_id: str) -> str:
    """Return the page of a training run."""
    return f"{CONSOLE}/training_runs/{training_run_id}"


def checkpoint_url(tinker_path: str) -> str:
    """Return the page of a checkpoint; ValueError for a malformed path."""
    parsed = ParsedCheckpointTinkerPath.from_tinker_path(tinker_path)
    run, checkpoint = quote(parsed.training_run_id, safe=""), quote(parsed.checkpoint_id, safe="")
    return f"{CONSOLE}/checkpoints/{run}/{checkpoint}"


def playground_url(tinker_path: str) -> str:
    """Return the page of a chat with a checkpoint."""
    return f"{CONSOLE}/playground?mode=checkpoint&checkpoint={quote(tinker_path, safe='')}"


@attrs.frozen(kw_only=True)
class WhoamiResponse(AttrsValue):
    """The user and the organization that own a credential.

    Attributes:
        user_urn: The URN of the user.
        org_urn: The URN of the organization.
        email: The address of the user; None if the server does not report it.
    """

    user_urn: str
    org_urn: str
    email: str | None = None


@attrs.frozen(kw_only=True)
class SampleStreamChunk:
    """Consecutive tokens of one sample.

    Attributes:
        index: The number of the sample that the tokens belong to, from 0.
        tokens: The token ids; empty if a sample ends without another token.
        logprobs: The log-probability of each token; None if the server sends none.
        text: The text that these tokens complete; None without a tokenizer. A character that spans
            several tokens belongs to the last of them.
        stop_reason: Why the sample ends with this chunk, ``stop`` or ``length``; None if it
            continues.
    """

    index: int
    tokens: list[int]
    logprobs: list[float] | None = None
    text: str | None = None
    stop_reason: str | None = None


LossFnOutput: TypeAlias = dict[str, TensorData]

# The wire marks an empty cell of a top-k table so.
EMPTY_TOKEN_ID = 0
EMPTY_LOGPROB = -99999.0

TopkRow: TypeAlias = list[tuple[int, float]] | None

# Arrays have no single truth value; values that hold some are equal when the arrays are, element by
# element.
_EQUAL_ARRAYS = attrs.cmp_using(eq=lambda one, other: np.array_equal(one, other))


class _NotIndexable(SuggestsNames):
    """Base of results whose indexing or iteration raises TypeError that names the fields."""

    __slots__ = ()
    _parts: ClassVar[str]

    if not TYPE_CHECKING:

        def __getitem__(self, _: object) -> NoReturn:
            raise TypeError(
                f"a {type(self).__name__} cannot be indexed or iterated over: use {self._parts}"
            )


class _SentMetrics(dict[str, float]):
    """A dictionary whose KeyError names the metrics that there are."""

    def __missing__(self, name: str) -> NoReturn:
        raise KeyError(self.explain(name))

    def explain(self, name: str) -> str:
        advice = "; use output.loss" if name == "loss" and "loss:sum" in self else ""
        return (
            f"the server did not send the metric {name!r}; it sent: "
            f"{', '.join(sorted(self)) or 'none'}{advice}"
        )


@attrs.frozen
class ForwardBackwardOutput(_NotIndexable, AttrsValue):
    """Result of ``forward`` and ``forward_backward``.

    Attributes:
        loss_fn_output_type: The server's name for the format of the outputs.
        loss_fn_outputs: The tensors of each datum by name, in the order of the data; ``logprobs``
            for the built-in losses.
        metrics: Numbers by ``name:reduction``, such as ``loss:sum``. Of a batch that was sent in
            several requests, one whose reduction is not known is left out.
    """

    loss_fn_output_type: str
    loss_fn_outputs: list[LossFnOutput]
    metrics: dict[str, float] = attrs.field(factory=_SentMetrics, converter=_SentMetrics)

    _parts = (
        "output.loss (per token: divided by the sum of the weights), output.metrics or "
        "output.loss_fn_outputs"
    )
    _suggestions: ClassVar[Mapping[str, str]] = {
        "logprobs": "output.loss_fn_outputs[0]['logprobs']"
    }

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        fields["loss_fn_outputs"] = [
            {name: TensorData.model_validate(tensor) for name, tensor in output.items()}
            for output in fields["loss_fn_outputs"]
        ]
        return cls(**fields)

    @property
    def loss(self) -> float:
        """Return the metric ``loss:sum``. Raises AttributeError if the server did not send it; see
        ``metrics``.
        """
        return self.metrics["loss:sum"] if "loss:sum" in self.metrics else self._refuse_loss()

    def _refuse_loss(self) -> NoReturn:
        raise AttributeError(_SentMetrics(self.metrics).explain("loss:sum"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # an AttributeError of a property ends up here, and its message would be lost
            if name == "loss":
                self._refuse_loss()
            return super().__getattr__(name)


@attrs.frozen
class TopkLogprobs(AttrsValue):
    """The k most likely tokens at each of n positions.

    Attributes:
        token_ids: The token ids, int32 ``[n, k]``.
        logprobs: The log-probabilities, float32 ``[n, k]``.
    """

    token_ids: NDArray[np.int32] = attrs.field(eq=_EQUAL_ARRAYS)
    logprobs: NDArray[np.float32] = attrs.field(eq=_EQUAL_ARRAYS)

    @classmethod
    def from_rows(cls, rows: Sequence[TopkRow]) -> TopkLogprobs:
        """Create a table from rows in the format of :meth:`tolist`. Shorter rows are padded; there
        is at least one column.

        Args:
            rows: For each position, a list of (token id, log-probability), or None.

        Returns:
            The table.
        """
        # a message cannot say that there are none
        k = max((len(row) for row in rows if row), default=1)
        token_ids = np.full((len(rows), k), EMPTY_TOKEN_ID, np.int32)
        logprobs = np.full((len(rows), k), EMPTY_LOGPROB, np.float32)
        for index, row in enumerate(rows):
            for column, (token, logprob) in enumerate(row or ()):
                token_ids[index, column] = token
                logprobs[index, column] = logprob
        return cls(token_ids, logprobs)

    def _field_values(self) -> dict[str, Any]:
        return {"token_ids": self.token_ids.tolist(), "logprobs": self.logprobs.tolist()}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(
            np.asarray(fields["token_ids"], np.int32), np.asarray(fields["logprobs"], np.float32)
        )

    def tolist(self) -> list[TopkRow]:
        """Return the rows of the table, without empty cells.

        Returns:
            For each position, a list of (token id, log-probability), or None if the server sent
            none.
        """
        return [
            _row(ids, logprobs)
            for ids, logprobs in zip(self.token_ids.tolist(), self.logprobs.tolist(), strict=True)
        ]


def topk_to_lists(topk: TopkLogprobs) -> list[TopkRow]:
    """Return what ``topk.tolist()`` does; a name of older versions."""
    return topk.tolist()


def _row(ids: list[int], logprobs: list[float]) -> TopkRow:
    cells = list(zip(ids, logprobs, strict=True))
    while cells and cells[-1] == (EMPTY_TOKEN_ID, EMPTY_LOGPROB):
        cells.pop()
    return cells or None


@attrs.frozen
class PromptAltTokens(AttrsValue):
    """The k alternatives drawn at each position of a prompt of n tokens.

    Attributes:
        tokens: The token ids, int64 ``[n - 1, k]``.
        logprobs: The log-probabilities, float32 ``[n - 1, k]``.
    """

    tokens: TensorData
    logprobs: TensorData

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**{name: TensorData.model_validate(tensor) for name, tensor in fields.items()})


class SampledSequence(SuggestsNames, FrozenValue):
    """One continuation. Sequences are equal if all their fields are equal.

    Arrays are stored unchanged, and converted to lists on first use.

    Args:
        stop_reason: Why the sequence ended, ``stop`` or ``length``.
        sequence_id: The server's id of the sequence; None if it sent none.
        tokens_np: The token ids, int32. None means no tokens.
        logprobs_np: The log-probability of each token, float32; None if the server sent none.
        topk_logprobs_np: The most likely alternatives of each token; None if they were not
            requested.
        tokens: The token ids as a list, instead of ``tokens_np``.
        logprobs: The log-probabilities as a list, instead of ``logprobs_np``.
        extra: Fields that only some servers send, by name, as their JSON says; None if there are
            none.
    """

    stop_reason: StopReason
    sequence_id: str | None
    tokens_np: NDArray[np.int32]
    logprobs_np: NDArray[np.float32] | None
    topk_logprobs_np: TopkLogprobs | None
    extra: dict[str, Any] | None = None

    _suggestions: ClassVar[Mapping[str, str]] = {
        "text": "tokenizer.decode(sequence.tokens)",
        **dict.fromkeys(("token_ids", "ids"), "sequence.tokens"),
        "finish_reason": "sequence.stop_reason",
    }

    def __init__(
        self,
        stop_reason: StopReason,
        sequence_id: str | None = None,
        tokens_np: NDArray[np.int32] | None = None,
        logprobs_np: NDArray[np.float32] | None = None,
        topk_logprobs_np: TopkLogprobs | None = None,
        _tokens_list: Sequence[int] | None = None,
        _logprobs_list: Sequence[float] | None = None,
        _topk_logprobs_list: Sequence[TopkRow] | None = None,
        *,
        tokens: Sequence[int] | NDArray[np.int32] | None = None,
        logprobs: Sequence[float] | NDArray[np.float32] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        given = next((one for one in (tokens_np, tokens, _tokens_list) if one is not None), ())
        drawn = next(
            (one for one in (logprobs_np, logprobs, _logprobs_list) if one is not None), None
        )
        self.__dict__.update(
            stop_reason=stop_reason,
            sequence_id=sequence_id,
            tokens_np=np.asarray(given, np.int32),
            logprobs_np=None if drawn is None else np.asarray(drawn, np.float32),
            topk_logprobs_np=topk_logprobs_np or topk_table(_topk_logprobs_list),
        )
        if extra:
            self.__dict__["extra"] = extra
        if isinstance(drawn, list):
            self.__dict__["logprobs"] = list(drawn)  # as they were given, not rounded to float32

    @classmethod
    def of_arrays(
        cls,
        stop_reason: StopReason,
        sequence_id: str | None,
        tokens: NDArray[np.int32],
        logprobs: NDArray[np.float32] | None,
        topk_logprobs: TopkLogprobs | None,
    ) -> SampledSequence:
        """Create a sequence from arrays with the right dtypes, without conversion."""
        sequence = cls.__new__(cls)
        values = sequence.__dict__
        values["stop_reason"] = stop_reason
        values["sequence_id"] = sequence_id
        values["tokens_np"] = tokens
        values["logprobs_np"] = logprobs
        values["topk_logprobs_np"] = topk_logprobs
        return sequence

    @cached_property
    def tokens(self) -> list[int]:
        """Return the token ids, including the stop token that ended the sequence."""
        return cast("list[int]", self.tokens_np.tolist())

    @cached_property
    def logprobs(self) -> list[float] | None:
        """Return the log-probability of each token; None if the server sent none."""
        return None if self.logprobs_np is None else self.logprobs_np.tolist()

    @cached_property
    def topk_logprobs(self) -> list[TopkRow] | None:
        """Return the most likely alternatives of each token as (id, log-probability); None if they
        were not requested.
        """
        return None if self.topk_logprobs_np is None else self.topk_logprobs_np.tolist()

    def _field_values(self) -> dict[str, Any]:
        names = (
            "stop_reason",
            "sequence_id",
            "tokens",
            "logprobs",
            "topk_logprobs",
            *["extra"] * (self.extra is not None),
        )
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        rows = fields.pop("topk_logprobs", None)
        return cls(**fields, topk_logprobs_np=topk_table(rows))

    @classmethod
    def _field_infos(cls) -> Iterable[FieldInfo]:
        return (info for info in super()._field_infos() if not info.kw_only)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SampledSequence):
            return NotImplemented
        names = ("stop_reason", "sequence_id", "topk_logprobs_np", "extra")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return (
            same
            and np.array_equal(self.tokens_np, other.tokens_np)
            and _same_floats(self.logprobs_np, other.logprobs_np)
        )

    def __hash__(self) -> int:
        return hash((self.stop_reason, self.sequence_id, len(self.tokens_np)))

    def __repr__(self) -> str:
        reason, sequence_id = self.stop_reason, self.sequence_id
        tokens, logprobs = show_tokens(self.tokens_np), _show_logprobs(self.logprobs_np)
        return (
            f"SampledSequence(stop_reason={reason!r}, sequence_id={sequence_id!r}, "
            f"tokens={tokens}, logprobs={logprobs})"
        )


def _show_logprobs(logprobs: NDArray[np.float32] | None) -> str:
    """Return the first value and the number of values."""
    if logprobs is None or len(logprobs) == 0:
        return "None" if logprobs is None else "[]"
    return (
        f"[{logprobs[0]:.4g}]"
        if len(logprobs) == 1
        else f"[{logprobs[0]:.4g}, ... {len(logprobs)} values]"
    )


def _same_floats(one: NDArray[np.float32] | None, other: NDArray[np.float32] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other, equal_nan=True)


def topk_table(rows: Sequence[TopkRow] | None) -> TopkLogprobs | None:
    """Return the table of rows; None where there are none."""
    return None if rows is None else TopkLogprobs.from_rows(rows)


@explain_changes
@attrs.frozen(slots=False)
class SampleResponse(_NotIndexable, AttrsValue):
    """Result of ``sample``: one sequence per sample, and the requested information about the prompt
    of n tokens.

    The arguments with an underscore exist for tests of older code.

    Attributes:
        sequences: The continuations.
        prompt_logprobs_np: The log-probability of each prompt token, float32 ``[n]``; NaN for the
            first token and for unknown values. None if not requested.
        topk_prompt_logprobs_np: The most likely tokens of each prompt position; None if not
            requested.
        target_prompt_logprobs: The log-probabilities of the tokens in ``target_prompt_logprobs`` of
            the call, float32 ``[n - 1, K]``; None if not requested.
        prompt_cache_hit_tokens: The number of prompt tokens that the server found in its cache.
        prompt_alt_tokens: The alternatives drawn for each prompt token; None if not requested.
        extra: Fields that only some servers send, by name, as their JSON says; None if there are
            none.
    """

    sequences: list[SampledSequence]
    prompt_logprobs_np: NDArray[np.float32] | None = attrs.field(
        default=None, repr=False, eq=attrs.cmp_using(eq=_same_floats)
    )
    topk_prompt_logprobs_np: TopkLogprobs | None = attrs.field(default=None, repr=False)
    target_prompt_logprobs: TensorData | None = None
    prompt_cache_hit_tokens: int = 0
    prompt_alt_tokens: PromptAltTokens | None = None
    extra: dict[str, Any] | None = attrs.field(default=None, repr=False, kw_only=True)

    _parts = "response.sequences"
    _suggestions: ClassVar[Mapping[str, str]] = {
        **{
            name: f"response.sequences[0].{name}"
            for name in ("tokens", "logprobs", "stop_reason", "topk_logprobs")
        },
        "text": "tokenizer.decode(response.sequences[0].tokens)",
        **dict.fromkeys(("choices", "outputs"), "response.sequences"),
    }

    _prompt_logprobs_list: Sequence[float | None] | None = attrs.field(
        default=None, repr=False, eq=False, alias="_prompt_logprobs_list"
    )
    _topk_prompt_logprobs_list: Sequence[TopkRow] | None = attrs.field(
        default=None, repr=False, eq=False, alias="_topk_prompt_logprobs_list"
    )

    def __attrs_post_init__(self) -> None:
        if self._prompt_logprobs_list is not None:
            self.__dict__["prompt_logprobs_np"] = np.asarray(self._prompt_logprobs_list, np.float32)
        if self._topk_prompt_logprobs_list is not None:
            self.__dict__["topk_prompt_logprobs_np"] = TopkLogprobs.from_rows(
                self._topk_prompt_logprobs_list
            )

    def _field_values(self) -> dict[str, Any]:
        names = [
            field.name.removesuffix("_np")
            for field in attrs.fields(SampleResponse)
            if not field.name.startswith("_")
        ]
        return {
            name: getattr(self, name) for name in names if name != "extra" or self.extra is not None
        }

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        prompt, rows = fields.get("prompt_logprobs"), fields.get("topk_prompt_logprobs")
        targets, alternatives = (
            fields.get("target_prompt_logprobs"),
            fields.get("prompt_alt_tokens"),
        )
        return cls(
            sequences=[
                SampledSequence.model_validate(sequence) for sequence in fields["sequences"]
            ],
            prompt_logprobs_np=None if prompt is None else np.asarray(prompt, np.float32),
            topk_prompt_logprobs_np=topk_table(rows),
            target_prompt_logprobs=None if targets is None else TensorData.model_validate(targets),
            prompt_cache_hit_tokens=fields.get("prompt_cache_hit_tokens") or 0,
            prompt_alt_tokens=None
            if alternatives is None
            else PromptAltTokens.model_validate(alternatives),
            extra=fields.get("extra"),
        )

    @property
    def samples(self) -> list[SampledSequence]:
        """Return ``sequences``."""
        return self.sequences

    @cached_property
    def prompt_logprobs(self) -> list[float | None] | None:
        """Return the log-probability of each prompt token given the previous ones; None for the
        first and unknown values.
        """
        if self.prompt_logprobs_np is None:
            return None
        return [None if value != value else value for value in self.prompt_logprobs_np.tolist()]

    @cached_property
    def topk_prompt_logprobs(self) -> list[TopkRow] | None:
        """Return the most likely tokens of each prompt position as (id, log-probability); None if
        they were not requested.
        """
        return (
            None if self.topk_prompt_logprobs_np is None else self.topk_prompt_logprobs_np.tolist()
        )


@attrs.frozen(kw_only=True)
class _Saved(AttrsValue):
    path: str
    type: str | None = None


class SaveWeightsResponse(_Saved):
    """The saved checkpoint of weights and optimizer state.

    Attributes:
        path: The path, ``tinker://<training run>/weights/<name>``.
        type: The server's name for the kind of response.
    """

    def get_console_url(self) -> str:
        """Return the address of the checkpoint's page on the hosted service."""
        return checkpoint_url(self.path)


class SaveWeightsForSamplerResponse(_Saved):
    """The saved checkpoint of weights for sampling.

    Attributes:
        path: The path, ``tinker://<training run>/sampler_weights/<name>``.
        type: The server's name for the kind of response.
    """

    def get_console_url(self) -> str:
        """Return the address of the checkpoint's page on the hosted service."""
        return checkpoint_url(self.path)

    def get_playground_url(self) -> str:
        """Return the address of a chat with the checkpoint on the hosted service."""
        return playground_url(self.path)


class SaveWeightsExternalResponse(_Saved):
    """The saved checkpoint of weights as files to download.

    Attributes:
        path: The path, ``tinker://<training run>/external_weights/<name>``.
        type: The server's name for the kind of response.
    """


# Unions that the contract has none of.

FutureRetrieveResponse: TypeAlias = (
    models.TryAgainResponse
    | ForwardBackwardOutput
    | models.OptimStepResponse
    | SaveWeightsResponse
    | models.LoadWeightsResponse
    | SaveWeightsForSamplerResponse
    | SaveWeightsExternalResponse
    | models.CreateModelResponse
    | models.UnloadModelResponse
    | SampleResponse
    | models.RequestFailedResponse
)
EventType: TypeAlias = Literal[
    "SESSION_START", "SESSION_END", "UNHANDLED_EXCEPTION", "GENERIC_EVENT"
]
CustomLossInputRank: TypeAlias = Literal[0, 1, 2]
