"""Rows with images in a pass: the positions of their tokens, and the states that take the place of embeddings.

An image's positions have three coordinates: that of its beginning, plus a row, plus a column. What follows goes on behind
the largest, so that a sequence with images has fewer positions than tokens. Text has the same number three times.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch is typed in part only)

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tinker.local.engines.protocol import Int32, PlacedImage
from tinker.local.engines.torch.images import TorchImage

TokenNames: TypeAlias = NDArray[np.integer[Any]]  # equal for equal beginnings only


def content_of(placed: PlacedImage) -> TorchImage:
    """Return an image that this engine has read."""
    assert isinstance(placed.image, TorchImage)
    return placed.image


def find_positions(images: Sequence[PlacedImage], length: int) -> NDArray[np.int64]:
    """Return the positions ``[3, length]`` of a sequence with these images, or of its beginning."""
    found, at, number = np.empty((3, length), np.int64), 0, 0
    for placed in images:
        image, end = content_of(placed), min(placed.end, length)
        if placed.start >= length:
            break
        found[:, at : placed.start] = np.arange(number, number + placed.start - at)
        number += placed.start - at
        grid = np.stack([np.zeros(image.length, np.int64), *divmod(np.arange(image.length), image.columns)])
        found[:, placed.start : end] = number + grid[:, : end - placed.start]
        at, number = end, number + max(image.rows, image.columns)
    found[:, at:] = np.arange(number, number + length - at)
    return found


def count_shift(images: Sequence[PlacedImage]) -> int:
    """Return the difference between position and index of a token after these images."""
    return sum(max(content_of(one).rows, content_of(one).columns) - one.image.length for one in images)


def name_tokens(tokens: Int32, images: Sequence[PlacedImage]) -> TokenNames:
    """Return the token ids, with a negative id for each image, unique to its content, at its positions."""
    if not images:
        return tokens
    names = tokens.astype(np.int64)
    for placed in images:
        names[placed.start : placed.end] = -1 - content_of(placed).key
    return names


@attrs.frozen
class ImageRow:
    """A row of a pass: its images, and the column of its first token, which may lie before the pass (below 0)."""

    images: Sequence[PlacedImage]
    first: int


@attrs.frozen(eq=False)
class ImageStates:
    """The states of images in a pass: in the places of ``mask`` ``[rows, columns]``, row after row."""

    mask: torch.Tensor
    states: torch.Tensor
    deep: Sequence[torch.Tensor]

    @classmethod
    def collect(cls, rows: Sequence[ImageRow], columns: slice, device: torch.device) -> ImageStates | None:
        """Collect the image states in these columns; None if there is no image."""
        mask = torch.zeros(len(rows), columns.stop - columns.start, dtype=torch.bool)
        parts: list[tuple[TorchImage, slice]] = []
        for number, row in enumerate(rows):
            for placed, start, end in _find_overlaps(row, columns):
                mask[number, start - columns.start : end - columns.start] = True
                begin = row.first + placed.start
                parts.append((content_of(placed), slice(start - begin, end - begin)))
        if not parts:
            return None
        states = torch.cat([image.states[part] for image, part in parts])
        deep = [torch.cat(layer) for layer in zip(*([one[part] for one in image.deep] for image, part in parts), strict=True)]
        return cls(mask.to(device), states, deep)

    def put(self, module: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Change the arguments of the language model: a hook of torch."""
        embeddings = options["inputs_embeds"]
        mask = self.mask.to(embeddings.device)
        changed = {"inputs_embeds": embeddings.masked_scatter(mask[..., None], self.states.to(embeddings))}
        if self.deep:
            changed |= {"visual_pos_masks": mask, "deepstack_visual_embeds": list(self.deep)}
        return inputs, {**options, **changed}


def _find_overlaps(row: ImageRow, columns: slice) -> Iterator[tuple[PlacedImage, int, int]]:
    """Yield the images of a row that lie in these columns, with the first column there and the one behind the last."""
    for placed in row.images:
        start, end = max(columns.start, row.first + placed.start), min(columns.stop, row.first + placed.end)
        if start < end:
            yield placed, start, end


@contextmanager
def insert_images(model: Any, images: ImageStates | None) -> Generator[None]:
    """Insert these image states into the passes of the language model inside the block."""
    if images is None:
        yield
        return
    handle = model.get_decoder().register_forward_pre_hook(images.put, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
