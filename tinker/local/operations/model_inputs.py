"""A model input of a request as the engine takes it: token ids, and images with their places."""

from __future__ import annotations

import numpy as np

from tinker.local.engines.protocol import (
    EngineError,
    EngineImage,
    ImageReader,
    InputReader,
    Int32,
    PlacedImage,
)
from tinker.types.model_input import (
    EncodedTextChunk,
    ImageAssetPointerChunk,
    ImageChunk,
    ModelInput,
)


def read_input(model: InputReader, value: ModelInput, what: str) -> tuple[Int32, list[PlacedImage]]:
    """Return the tokens and images. Raises EngineError, naming ``what`` and the chunk, for an
    unsupported chunk.
    """
    reader, arrays, images, start = model.image_reader, list[Int32](), list[PlacedImage](), 0
    for index, chunk in enumerate(value.chunks):
        where = f"{what}: chunk {index}"
        if isinstance(chunk, EncodedTextChunk):
            arrays.append(chunk.array)
        elif reader is not None and isinstance(chunk, ImageChunk):
            image = _read_image(reader, chunk, where)
            images.append(PlacedImage(start=start, image=image))
            arrays.append(image.tokens)
        elif reader is not None and isinstance(chunk, ImageAssetPointerChunk):
            raise EngineError(
                f"{where} points to an image, and this server fetches none; send its "
                "bytes as an 'image' chunk"
            )
        else:
            readable = "'encoded_text' only" if reader is None else "'encoded_text' and 'image'"
            raise EngineError(f"{where} is of type {chunk.type!r}; this server reads {readable}")
        start += len(arrays[-1])
    return arrays[0] if len(arrays) == 1 else np.concatenate(
        [np.empty(0, np.int32), *arrays]
    ), images


def _read_image(reader: ImageReader, chunk: ImageChunk, where: str) -> EngineImage:
    try:
        image = reader.read(chunk.data, chunk.format)
    except EngineError as error:
        raise EngineError(f"{where}: {error}") from error
    if chunk.expected_tokens not in (None, count := len(image.tokens)):
        raise EngineError(
            f"{where}: expected_tokens is {chunk.expected_tokens}, and the model makes "
            f"{count} tokens of this image"
        )
    return image
