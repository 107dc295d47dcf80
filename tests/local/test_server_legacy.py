"""Bodies of clients of 2025, which leave out types: what is recognised, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
from support.api import Api
from tinker_wire import models

from tinker.local.call import read_body


def prompted(*chunks: object, **fields: Any) -> dict[str, Any]:
    return {"prompt": {"chunks": chunks}, "sampling_params": {}, **fields}


@pytest.mark.parametrize("size", [{"height": 2, "tokens": 4, "width": 3}, {"expected_tokens": 4}])
def test_old_images_are_recognised_and_refused_as_images(api: Api, size: dict[str, int]) -> None:
    """An image without a type is recognised by its fields, and refused in the result."""
    image = {"data": "iVBORw==", "format": "png", **size}
    sampler = api.sampler(api.session())
    body = prompted({"tokens": [1]}, image, sampling_session_id=sampler, seq_id=0)
    category, error = api.failure(api.ok("asample", body))
    assert (category, "chunk 1 is of type 'image'" in error) == ("user", True)


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (prompted({"nothing": 1}), "chunks"),
        (prompted({"tokens": ["a"]}), "must be an integer, not a string"),
        (prompted(5), "must be an object, not an integer"),
        ({**prompted(), "prompt": None}, "must be an object, not null"),
        ({"prompt": {"chunks": [{"tokens": [1]}]}}, "sampling_params"),
    ],
)
def test_leniency_ends_where_the_meaning_is_unclear(
    api: Api, record: dict[str, Any], said: str
) -> None:
    """A body that neither form allows is 422 and names the place."""
    api.refuses(422, said, "asample", record)


def test_a_record_is_read_as_the_member_that_it_fits() -> None:
    """Of the members of a union that fit, the one is meant whose fields are not null."""
    text = b'{"tokens": [1], "format": null, "data": null}'
    asset = b'{"format": "png", "data": null, "location": "x"}'
    found = read_body(b'{"chunks": [%s, %s]}' % (text, asset), models.ModelInput).chunks
    assert [type(one) for one in found] == [models.EncodedTextChunk, models.ImageAssetPointerChunk]


def test_required_nulls_stay() -> None:
    """``detail`` of finish is null on the wire and keeps that meaning."""
    body = b'{"reason": {"type": "success", "extra": null}, "detail": null, "unknown": 1}'
    assert read_body(body, models.FinishSessionRequest).detail is None
