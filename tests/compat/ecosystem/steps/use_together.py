"""together: its layer over tinker's types, which go out as its own requests and come back from its
results; nothing is sent.
"""

from __future__ import annotations

from typing import Any

import pytest
import together.post_training.tinker as layer
from reporting import report
from together.post_training import ForwardBackwardResult, SampleResult
from together.post_training.tinker import _converters

import tinker
from tinker import types


def names_of_the_layer() -> None:
    """A script changes its import line alone: the layer's types are the installed client's."""
    assert layer.types is types
    for name in (
        "AdamParams",
        "Datum",
        "EncodedTextChunk",
        "LoraConfig",
        "ModelInput",
        "SamplingParams",
        "TensorData",
    ):
        assert getattr(layer, name) is getattr(tinker, name), name


def make_datum(**inputs: Any) -> tinker.Datum:
    """A datum of three tokens."""
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], **inputs},
    )


def datum() -> None:
    sent = _converters._to_sample(make_datum(weights=[0.0, 1.0, 0.5]), "cross_entropy")
    assert sent["model_input"] == {"chunks": [{"encoded_text": {"tokens": [1, 2, 3]}}]}
    assert sent["loss_fn_inputs"] == {
        "target_tokens": {"data": [2, 3, 4], "dtype": "int64"},
        "weights": {"data": [0.0, 1.0, 0.5], "dtype": "float32"},
    }


def policy_loss() -> None:
    given = make_datum(logprobs=[-0.5, -1.0, -1.5], advantages=[1.0, 0.0, -1.0])
    assert _converters._to_sample(given, "ppo")["loss_fn_inputs"]["advantages"]["data"] == [
        1.0,
        0.0,
        -1.0,
    ]
    with pytest.raises(ValueError, match="Unknown loss_fn"):
        _converters._to_sample(given, "no_such_loss")


def tensor_of_two_dimensions() -> None:
    """What its requests cannot carry is refused."""
    table = tinker.TensorData(data=[2, 3, 4, 5], dtype="int64", shape=[2, 2])
    with pytest.raises(ValueError, match="2-dimensional"):
        _converters._to_sample(make_datum(target_tokens=table, weights=[1.0, 1.0]), "cross_entropy")


def custom_loss() -> None:
    """Weights of zero are added where a datum has none."""
    made = _converters._with_zero_weights_if_missing(make_datum())
    assert made.loss_fn_inputs["weights"].tolist() == [0.0, 0.0, 0.0]


def parameters() -> None:
    sampling = tinker.SamplingParams(max_tokens=7, seed=3, stop=["a", "b"], temperature=0.5)
    expected = {
        "temperature": 0.5,
        "top_k": -1,
        "top_p": 1.0,
        "max_tokens": 7,
        "seed": 3,
        "stop": ["a", "b"],
    }
    assert _converters._to_sampling_params(sampling) == expected
    adam = _converters._to_adam_params(tinker.AdamParams(learning_rate=1e-3))
    assert (adam["learning_rate"], adam["grad_clip_norm"]) == (1e-3, 0.0)


def result_of_a_sample() -> None:
    sequence = {
        "stop_reason": "STOP_REASON_STOP",
        "tokens": ["5", "6"],
        "logprobs": [-0.5, -1.0],
        "prompt_cache_hit_tokens": 2,
    }
    alternatives = [
        {"token_ids": [], "logprobs": []},
        {"token_ids": [7, 8], "logprobs": [-0.25, -2.0]},
    ]
    fields = {
        "prompt_logprobs": [0.0, -0.25],
        "topk_prompt_logprobs": alternatives,
        "policy_segments": [],
    }
    found = _converters._to_sample_response(
        SampleResult.construct(sequences=[sequence], **fields), 2
    )
    assert isinstance(found, types.SampleResponse)
    assert (found.sequences[0].tokens, found.sequences[0].logprobs) == ([5, 6], [-0.5, -1.0])
    assert (found.sequences[0].stop_reason, found.prompt_cache_hit_tokens) == ("stop", 2)
    assert found.prompt_logprobs == [None, -0.25]
    assert found.topk_prompt_logprobs == [None, [(7, -0.25), (8, -2.0)]]


def result_of_a_loss() -> None:
    outputs = [{"tensors": {"logprobs": {"data": [-0.5, -1.0], "dtype": "float32"}}}]
    result = ForwardBackwardResult.construct(
        loss=1.5, loss_fn_outputs=outputs, metrics={"entropy": 0.25}
    )
    found = _converters._to_forward_backward_output(result)
    assert isinstance(found, types.ForwardBackwardOutput)
    assert found.metrics == {"entropy": 0.25, "loss:sum": 1.5}
    assert found.loss_fn_outputs[0]["logprobs"].tolist() == [-0.5, -1.0]


def methods_that_it_lacks() -> None:
    """Its errors are the client's."""
    service = layer.ServiceClient(api_key="any", base_url="http://127.0.0.1:9")
    with pytest.raises(tinker.TinkerError, match="RestClient"):
        service.create_rest_client()


if __name__ == "__main__":
    report(
        [
            names_of_the_layer, datum, policy_loss, tensor_of_two_dimensions, custom_loss, parameters, result_of_a_sample,
            result_of_a_loss, methods_that_it_lacks,
        ]
    )  # fmt: skip
