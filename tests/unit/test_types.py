"""Public types: accepted and refused values, and value semantics."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import tinker
from tinker import types


@pytest.mark.parametrize(
    "tokens", [[1, 2, 3], (1, 2, 3), range(1, 4), np.asarray([1, 2, 3]), "torch"]
)
def test_tokens_of_any_kind(tokens: Any) -> None:
    """Lists, tuples, ranges, numpy and torch tokens become the same tokens, as int32."""
    if isinstance(tokens, str):
        tokens = pytest.importorskip("torch").tensor([1, 2, 3])
    chunk = types.EncodedTextChunk(tokens=tokens)
    assert list(chunk.tokens) == [1, 2, 3]
    assert (chunk.array.dtype, chunk.array.tolist(), chunk.length) == (np.int32, [1, 2, 3], 3)


@pytest.mark.parametrize("tokens", [[1.5], [[1]], ["x"], [2**31], [None]])
def test_invalid_tokens(tokens: Any) -> None:
    """Values that are not 32-bit integers are refused."""
    with pytest.raises(ValueError, match="tokens must"):
        types.EncodedTextChunk(tokens=tokens)


def test_model_input_is_an_immutable_value() -> None:
    """Inputs compare by value, are copied, cannot be changed, and can be pickled."""
    tokens = [1, 2]
    one = tinker.ModelInput.from_ints(tokens)
    tokens.append(3)
    assert one.to_ints() == [1, 2]
    assert one == tinker.ModelInput.from_ints([1, 2])
    assert one != tinker.ModelInput.from_ints([2, 1])
    assert one == pickle.loads(pickle.dumps(one)) == copy.deepcopy(one)
    with pytest.raises(AttributeError):
        one.chunks[0].tokens = [5]  # type: ignore[misc]
    with pytest.raises(TypeError):
        hash(one)
    assert one.append_int(3).to_ints() == [1, 2, 3]
    assert one.length == 2


def test_images_and_audio() -> None:
    """Chunks that are not text have the length that they state, and no tokens."""
    image = types.ImageChunk(data=b"x", format="png", expected_tokens=7)
    audio = types.DmelChunk(dmel=bytes([254, 0, 2, 0x85, 0x01, 3]))
    mixed = tinker.ModelInput(chunks=[image, audio])
    assert mixed.length == 7 + 133
    assert image == types.ImageChunk(data="eA==", format="png", expected_tokens=7)
    with pytest.raises(ValueError, match="EncodedTextChunk"):
        mixed.to_ints()
    with pytest.raises(ValueError, match="set expected_tokens of the ImageChunk"):
        _ = types.ImageChunk(data=b"x", format="png").length
    for header in (b"", b"\xfe", b"\x09\x01\x01", b"\x00\x00", b"\x00\x01\xff"):
        with pytest.raises(ValueError, match="TensorContainer"):
            _ = types.DmelChunk(dmel=header).length


def test_sparse_torch_targets() -> None:
    """A mostly empty torch tensor of targets becomes sparse and dense again without a change."""
    torch = pytest.importorskip("torch")
    dense = torch.zeros(10, 50, dtype=torch.int64)
    dense[3, 7], dense[9, 49] = 5, 6
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(range(10)), loss_fn_inputs={"target_tokens": dense}
    )
    stored = datum.loss_fn_inputs["target_tokens"]
    assert stored.is_sparse
    assert torch.equal(stored.to_torch(), dense)
    for kept in (torch.ones(2, 2), torch.zeros(9)):
        assert not tinker.TensorData.from_torch_sparse(kept).is_sparse


def test_loss_inputs_take_their_dtype_from_the_name() -> None:
    """Lists under known names have the losses' dtype, others their values'; arrays keep theirs."""
    given: dict[str, Any] = {
        "target_tokens": [1],
        "weights": [1],
        "advantages": [2],
        "mine": [3],
        "other": np.asarray([0.5]),
    }
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints([1]), loss_fn_inputs=given)
    dtypes = {name: tensor.dtype for name, tensor in datum.loss_fn_inputs.items()}
    assert dtypes == {
        "target_tokens": "int64",
        "weights": "float32",
        "advantages": "float32",
        "mine": "int64",
        "other": "float32",
    }
    with pytest.raises(TypeError, match=r"loss_fn_inputs\['weights'\] must be .*, got float"):
        tinker.Datum(model_input=tinker.ModelInput.empty(), loss_fn_inputs={"weights": 1.0})


def test_provenance() -> None:
    """Spans come in pairs and tile the tokens exactly."""
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": [2, 3]}
    )
    prompt = types.PromptProvenanceSpan(sequence_id="a", length=1)
    sampled = types.SampledProvenanceSpan(sequence_id="a", length=1)
    both = datum.with_provenance([prompt, sampled], [sampled, sampled])
    assert both.model_input_spans == [prompt, sampled]
    with pytest.raises(ValueError, match="cover 1 tokens, the datum has 2"):
        datum.with_provenance([prompt], [sampled, sampled])
    with pytest.raises(ValueError, match="or neither"):
        tinker.Datum(model_input=datum.model_input, model_input_spans=[prompt])
    with pytest.raises(ValueError, match="sequence_id"):
        types.PromptProvenanceSpan(sequence_id="", length=1)


@pytest.mark.parametrize(
    "path",
    ["run/weights/1", "tinker://run/weights", "tinker://run/other/1", "tinker://a/weights/b/c"],
)
def test_checkpoint_paths(path: str) -> None:
    """A checkpoint path has a scheme, a run, a known kind and a name."""
    parsed = types.ParsedCheckpointTinkerPath.from_tinker_path(
        "tinker://s:train:0/sampler_weights/x"
    )
    assert (parsed.training_run_id, parsed.checkpoint_type, parsed.checkpoint_id) == (
        "s:train:0",
        "sampler",
        "sampler_weights/x",
    )
    with pytest.raises(ValueError, match="is not the path of a checkpoint"):
        types.ParsedCheckpointTinkerPath.from_tinker_path(path)


def test_loss_of_an_output() -> None:
    """The loss is the sum metric; without it the error lists the existing metrics."""
    assert tinker.ForwardBackwardOutput("x", [], {"loss:sum": 2.0}).loss == 2.0
    with pytest.raises(AttributeError, match="total:mean"):
        _ = tinker.ForwardBackwardOutput("x", [], {"total:mean": 2.0}).loss


def test_every_public_name_exists() -> None:
    """Each name in the packages' lists exists, and an unknown one is an AttributeError."""
    for module in (tinker, types):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        _ = tinker.nothing_like_this  # type: ignore[attr-defined]
    assert set(tinker.__all__) <= set(dir(tinker))
    assert "Any" not in dir(tinker)


def test_tokens_are_plain_integers() -> None:
    """Numbers among tokens are returned as integers, and a tuple as a tuple."""
    tokens = tinker.ModelInput.from_ints([np.int64(1), 2.0, True]).to_ints()  # type: ignore[list-item]
    assert [(token, type(token)) for token in tokens] == [(1, int), (2, int), (1, int)]
    assert types.EncodedTextChunk(tokens=(np.int32(5),)).tokens == (5,)  # type: ignore[arg-type]


def test_images_have_a_known_format() -> None:
    """An image format that no server reads is refused."""
    with pytest.raises(ValueError, match="png, jpeg, got 'webp'"):
        types.ImageChunk(data=b"", format="webp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="png, jpeg"):
        types.ImageAssetPointerChunk(location="x", format="gif")  # type: ignore[arg-type]


def test_older_forms_of_sequences() -> None:
    """A sequence can be created by position, from arrays, or from lists under their older names."""
    one = tinker.SampledSequence(
        "stop", "q", np.asarray([1], np.int32), np.asarray([-0.5], np.float32)
    )
    two = tinker.SampledSequence(
        stop_reason="stop",
        sequence_id="q",
        _tokens_list=[1],
        _logprobs_list=[-0.5],
        _topk_logprobs_list=[[(1, -0.5)]],
    )
    assert (one.tokens, one.logprobs, one.topk_logprobs) == ([1], [-0.5], None)
    assert (two.tokens, two.logprobs, two.topk_logprobs) == ([1], [-0.5], [[(1, -0.5)]])
    assert tinker.SampleResponse([one], np.asarray([np.nan], np.float32)).prompt_logprobs == [None]
