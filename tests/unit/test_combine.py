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


def thrice(name: str, *values: float) -> list[ForwardBackwardOutput]:
    """Return three chunks with 2, 2 and 1 outputs."""
    return [result(count, **{name: value}) for count, value in zip((2, 2, 1), values, strict=True)]


@pytest.mark.parametrize(
    ("chunks", "metrics"),
    [
        # as recorded with the reference client
        *(
            (thrice(f"m__{suffix}", 1.0, 2.0, 3.0), {f"m:{suffix}": near(value, 3, unit=FLOAT64)})
            for suffix, value in {
                "sum": 6.0,
                "mean": 1.8,
                "min": 1.0,
                "max": 3.0,
                "slack": 1.2,
                "hash2": 6,
            }.items()
        ),
        # equal values too
        (
            thrice("m__unique", 1.0, 1.0, 2.0),
            {"m:unique": 1.0, "m:unique_1": 1.0, "m:unique_2": 2.0},
        ),
        # the value of older clients, in any order
        (thrice("h__hash_unordered", 3.0, 7.0, 5.0), {"h:hash_unordered": 3180534974885857761}),
        (thrice("h__hash_unordered", 5.0, 3.0, 7.0), {"h:hash_unordered": 3180534974885857761}),
        # modulo 2 to the 64th, of negative values too
        ([result(1, h__hash2=-1.0), result(1, h__hash2=2.0)], {"h:hash2": 1}),
        ([result(1, h__hash2=2.0**63), result(1, h__hash2=2.0**63)], {"h:hash2": 0}),
        ([result(1, h__hash2=2.0**64), result(1, h__hash2=5.0)], {"h:hash2": 5}),
        # what a chunk lacks, or has no known reduction, is left out
        (
            [
                result(1, a__sum=1.0, b__sum=1.0, c__odd=1.0, plain=1.0),
                result(1, a__sum=2.0, c__odd=1.0, plain=1.0),
            ],
            {"a:sum": 3.0},
        ),
        # but a single chunk keeps everything
        ([result(0, plain=1.0, a__b__mean=2.0)], {"plain": 1.0, "a:b:mean": 2.0}),
        # chunks without outputs have equal weights
        ([result(0, m__mean=1.0), result(0, m__mean=2.0)], {"m:mean": 1.5}),
    ],
)
def test_metrics_of_chunks(chunks: list[ForwardBackwardOutput], metrics: dict[str, float]) -> None:
    """Metrics of chunks are reduced as their names say."""
    assert combine(chunks).metrics == metrics


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


def test_chunks_are_limited_by_count_and_bytes() -> None:
    """Limits of datums and bytes may be reached; a larger datum goes alone, and the order stays."""
    chunks = split([datum(2)] * 5, 1024, 60)  # as recorded
    assert [(len(data), nbytes) for data, nbytes in chunks] == [(2, 48), (2, 48), (1, 24)]
    assert [len(data) for data, _ in split([datum(2)] * 3, 1024, 48)] == [2, 1]
    assert [len(data) for data, _ in split([datum(1)] * 5, 2, 10**9)] == [2, 2, 1]
    small, large = datum(1), datum(100)
    alone = [data for data, _ in split([small, large, small], 1024, 100)]
    assert alone == [[small], [large], [small]]
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
