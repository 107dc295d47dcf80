"""Combining the results of chunks, and splitting data into chunks."""

from __future__ import annotations

import pytest
from support.tolerances import FLOAT64, near

from tinker._training.losses import combine, split
from tinker.types import (
    Datum,
    DmelChunk,
    EncodedTextChunk,
    ForwardBackwardOutput,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
    ModelInputChunk,
    TensorData,
)


def result(count: int, **metrics: float) -> ForwardBackwardOutput:
    outputs = [{"logprobs": TensorData([float(i)], "float32")} for i in range(count)]
    return ForwardBackwardOutput(
        "x", outputs, {key.replace("__", ":"): value for key, value in metrics.items()}
    )


@pytest.mark.parametrize(
    ("suffix", "expected"),
    [("sum", 6.0), ("mean", 1.8), ("min", 1.0), ("max", 3.0), ("slack", 1.2), ("hash2", 6)],
)
def test_reductions(suffix: str, expected: float) -> None:
    """The values 1, 2, 3 of chunks of 2, 2 and 1 outputs reduce as the reference client's."""
    chunks = [result(n, **{f"m__{suffix}": x}) for n, x in ((2, 1.0), (2, 2.0), (1, 3.0))]
    assert combine(chunks).metrics == {f"m:{suffix}": near(expected, 3, unit=FLOAT64)}


def test_unique_keeps_every_value() -> None:
    """A unique metric keeps the value of each chunk under a separate key, equal ones too."""
    metrics = combine(
        [result(1, m__unique=1.0), result(1, m__unique=1.0), result(1, m__unique=2.0)]
    ).metrics
    assert metrics == {"m:unique": 1.0, "m:unique_1": 1.0, "m:unique_2": 2.0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [((3.0, 7.0, 5.0), 3180534974885857761), ((5.0, 3.0, 7.0), 3180534974885857761)],
)
def test_hash_of_older_servers(values: tuple[float, ...], expected: int) -> None:
    """``hash_unordered`` has the older clients' value, in any order of the chunks."""
    assert combine([result(1, h__hash_unordered=value) for value in values]).metrics == {
        "h:hash_unordered": expected
    }


def test_hash_wraps_at_two_to_the_64th() -> None:
    """Hashes add up modulo 2 to the 64th, of negative values too."""
    assert combine([result(1, h__hash2=-1.0), result(1, h__hash2=2.0)]).metrics == {"h:hash2": 1}
    assert combine([result(1, h__hash2=2.0**63), result(1, h__hash2=2.0**63)]).metrics == {
        "h:hash2": 0
    }
    assert combine([result(1, h__hash2=2.0**64), result(1, h__hash2=5.0)]).metrics == {"h:hash2": 5}


def test_metrics_of_some_chunks_are_left_out() -> None:
    """A metric that a chunk lacks, or whose reduction is unknown, is left out."""
    chunks = [
        result(1, a__sum=1.0, b__sum=1.0, c__odd=1.0, plain=1.0),
        result(1, a__sum=2.0, c__odd=1.0, plain=1.0),
    ]
    assert combine(chunks).metrics == {"a:sum": 3.0}


def test_one_chunk_keeps_everything() -> None:
    """For a single chunk every metric is kept, whatever its name."""
    assert combine([result(0, plain=1.0, a__b__mean=2.0)]).metrics == {
        "plain": 1.0,
        "a:b:mean": 2.0,
    }


def test_mean_without_outputs_is_the_plain_mean() -> None:
    """Chunks without outputs have equal weights."""
    assert combine([result(0, m__mean=1.0), result(0, m__mean=2.0)]).metrics == {"m:mean": 1.5}


def test_outputs_keep_their_order() -> None:
    """Outputs are concatenated in the order of the chunks."""
    combined = combine([result(2), result(1)])
    assert [output["logprobs"].tolist() for output in combined.loss_fn_outputs] == [
        [0.0],
        [1.0],
        [0.0],
    ]


def datum(tokens: int) -> Datum:
    """Return a datum of 24 bytes for 2 tokens: 8 of text, 8 of weights, and a third array of 8."""
    ones = TensorData([1.0] * tokens, "float32")
    return Datum(ModelInput.from_ints([1] * tokens), {"weights": ones, "logprobs": ones})


def test_split_by_bytes_as_recorded() -> None:
    """Five datums of 24 bytes with a limit of 60 make chunks of 2, 2 and 1."""
    chunks = split([datum(2)] * 5, 1024, 60)
    assert [(len(data), nbytes) for data, nbytes in chunks] == [(2, 48), (2, 48), (1, 24)]
    # a limit may be reached
    assert [len(data) for data, _ in split([datum(2)] * 3, 1024, 48)] == [2, 1]


def test_split_by_count() -> None:
    """No chunk has more datums than the limit."""
    assert [len(data) for data, _ in split([datum(1)] * 5, 2, 10**9)] == [2, 2, 1]


def test_oversized_datum_goes_alone() -> None:
    """A datum larger than the limit is a separate chunk, and the order is kept."""
    small, large = datum(1), datum(100)
    chunks = [data for data, _ in split([small, large, small], 1024, 100)]
    assert chunks == [[small], [large], [small]]
    assert [data for data, _ in split([large, small], 1024, 100)] == [[large], [small]]


@pytest.mark.parametrize(
    ("chunk", "nbytes"),
    [
        (EncodedTextChunk(tokens=[1, 2, 3]), 12),
        (ImageChunk(data=b"12345", format="png"), 5),
        (DmelChunk(dmel=b"1234567"), 7),
        (ImageAssetPointerChunk(location="gs://b/x.jpg", format="jpeg", expected_tokens=1), 12),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_input_counts(chunk: ModelInputChunk, nbytes: int) -> None:
    """The estimate of a datum includes every kind of input, at the size that is sent."""
    ((_, estimate),) = split([Datum(ModelInput(chunks=[chunk]), {})], 1024, 60)
    assert estimate == nbytes
