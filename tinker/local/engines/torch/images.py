"""Images: files opened with Pillow within limits, and what a model gives its language model for
them, which no adapter changes.

These are states in the places of some tokens, for some models also states for the first layers
(DeepStack), and positions of their own. They are read where the model enters its language model, so
nothing here depends on the kind of the model.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from tinker._basics.installation import install_command
from tinker.local.engines.protocol import EngineError, Int32, PlacedImage, explain, is_out_of_memory
from tinker.local.engines.torch.lora import copy_module, release_memory

if TYPE_CHECKING:
    from PIL.Image import Image

# Rows with images in a pass: the positions of their tokens, and the states that take the place of
# embeddings.
#
# In some models an image's positions have three coordinates: that of its beginning, plus a row,
# plus a column. What follows goes on behind the largest, so that a sequence with images has fewer
# positions than tokens. Text has the same number three times.

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
        found[:, placed.start : end] = number + image.positions[:, : end - placed.start]
        at, number = end, number + image.extent
    found[:, at:] = np.arange(number, number + length - at)
    return found


def count_shift(images: Sequence[PlacedImage]) -> int:
    """Return the difference between position and index of a token after these images."""
    return sum(content_of(one).extent - len(content_of(one).tokens) for one in images)


def are_in_line(images: Iterable[PlacedImage]) -> bool:
    """Return whether the positions of sequences with these images are those of text."""
    return not any(len(content_of(one).positions) > 1 for one in images)


def name_tokens(tokens: Int32, images: Sequence[PlacedImage]) -> TokenNames:
    """Return the token ids, with a negative id for each image, unique to its content, at its
    positions.
    """
    if not images:
        return tokens
    names = tokens.astype(np.int64)
    for placed in images:
        names[placed.start : placed.end] = -1 - content_of(placed).key
    return names


@attrs.frozen
class ImageRow:
    """A row of a pass: its images, and the column of its first token, which may lie before the pass
    (below 0).
    """

    images: Sequence[PlacedImage]
    first: int


@attrs.frozen(eq=False)
class ImageStates:
    """The states of images in a pass: in the places of ``mask``
    ``[rows, columns]``, row after row.
    """

    mask: torch.Tensor
    states: torch.Tensor
    deep: Sequence[torch.Tensor]

    @classmethod
    def collect(
        cls, rows: Sequence[ImageRow], columns: slice, device: torch.device
    ) -> ImageStates | None:
        """Collect the image states in these columns; None if there is no image."""
        mask = torch.zeros(len(rows), columns.stop - columns.start, dtype=torch.bool)
        parts: list[tuple[TorchImage, slice]] = []
        for number, row in enumerate(rows):
            for placed in row.images:
                begin = row.first + placed.start
                start, end = max(columns.start, begin), min(columns.stop, row.first + placed.end)
                if start < end:
                    mask[number, start - columns.start : end - columns.start] = True
                    parts.append((content_of(placed), slice(start - begin, end - begin)))
        if not parts:
            return None
        states = torch.cat([image.states[part] for image, part in parts])
        deep = [
            torch.cat(layer)
            for layer in zip(
                *([one[part] for one in image.deep] for image, part in parts), strict=True
            )
        ]
        return cls(mask.to(device), states, deep)

    def put(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Change the arguments of the language model: a hook of torch."""
        embeddings = options["inputs_embeds"]
        mask = self.mask.to(embeddings.device)
        changed = {
            "inputs_embeds": embeddings.masked_scatter(mask[..., None], self.states.to(embeddings))
        }
        if self.deep:
            changed |= {"visual_pos_masks": mask, "deepstack_visual_embeds": list(self.deep)}
        return inputs, {**options, **changed}


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


MAX_PIXELS = 2**25  # of one image; decoded they take 128 MB
FORMATS = {"png": "PNG", "jpeg": "JPEG"}  # what Pillow calls those of the contract


def open_image(data: bytes, image_format: str) -> Image:
    """Read the header of an image file, without decoding it. Raises EngineError if it is not of
    that format.
    """
    if find_spec("PIL") is None:
        raise EngineError(
            f"this server cannot read images without Pillow: {install_command('models')}"
        )
    if image_format not in FORMATS:
        raise EngineError(
            f"images of the format {image_format!r} are not read; send {' or '.join(FORMATS)}"
        )
    import PIL.Image

    too_large = EngineError(
        f"the image has more than {MAX_PIXELS} pixels; this server reads no larger ones"
    )
    try:
        with warnings.catch_warnings():
            # there is a limit below
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)
            image = PIL.Image.open(BytesIO(data), formats=[FORMATS[image_format]])
    except PIL.Image.DecompressionBombError as error:
        raise too_large from error
    except Exception as error:
        raise EngineError(
            f"the {len(data)} bytes are not a {FORMATS[image_format]} image"
        ) from error
    if image.width * image.height > MAX_PIXELS:
        raise too_large
    return image


NOT_TAKEN = "the model's processor does not take this image"
MAX_NBYTES = 2**28  # of the states of images that are kept for the next request


@attrs.frozen(kw_only=True, eq=False)
class TorchImage:
    """An image as the language model takes it: each token has ``states`` for the input, and
    ``deep`` for the first layers.

    ``positions`` ``[axes, length]`` begin at 0; one axis means those of text. ``key`` tells it from
    other images.
    """

    key: int
    tokens: Int32
    positions: NDArray[np.int64]
    states: torch.Tensor
    deep: Sequence[torch.Tensor]

    @property
    def extent(self) -> int:
        """Return how many positions it takes."""
        return int(self.positions.max()) + 1

    @property
    def nbytes(self) -> int:
        """Return the memory of its states."""
        return sum(tensor.nbytes for tensor in (self.states, *self.deep))


class UnreadImages:
    """An ImageReader that refuses every image: ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        self.reason: str = reason

    def read(self, data: bytes, image_format: str) -> TorchImage:
        open_image(data, image_format)
        raise EngineError(f"this server reads no images with this model: {self.reason}")


class _EnteredError(Exception):
    """The language model was reached: ``given`` are its arguments."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.given = given


def _stop(module: torch.nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    raise _EnteredError(options)


class TorchImages:
    """An ImageReader: Pillow opens a file, a processor cuts it up, and the model's tower computes
    its states.

    A processor that has a tokenizer writes the image's tokens; one that has none says how many
    placeholders there are, by its grid of patches.
    """

    def __init__(self, model: Any, processor: Any, longest: int) -> None:
        self._model, self._longest, self._processor = copy_module(model), longest, processor
        self._model.get_decoder().register_forward_pre_hook(_stop, with_kwargs=True)
        self._takes: Collection[str] = inspect.signature(model.forward).parameters
        self._has_tokens = hasattr(processor, "tokenizer")
        self._kept: OrderedDict[bytes, TorchImage] = OrderedDict()

    def read(self, data: bytes, image_format: str) -> TorchImage:
        key = hashlib.sha256(image_format.encode() + b":" + data).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        image = self._kept[key] = self.compute(self._open(data, image_format), key)
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > MAX_NBYTES:
            self._kept.popitem(last=False)
        return image

    def _open(self, data: bytes, image_format: str) -> dict[str, Any]:
        image = open_image(data, image_format)
        if not self._has_tokens:
            with explain(NOT_TAKEN, ValueError):
                patches = int(
                    self._processor.get_number_of_image_patches(image.height, image.width)
                )
            self._check_length(patches // self._processor.merge_size**2)
        _check_enlarged(image, getattr(self._processor, "image_processor", self._processor))
        from PIL.ImageOps import exif_transpose

        with explain("the image is damaged", Exception):
            image.load()
            decoded = exif_transpose(image)
        with explain(NOT_TAKEN, Exception):
            inputs = self.prepare(decoded)
        self._check_length(inputs["input_ids"].shape[1])
        return inputs

    def _check_length(self, length: int) -> None:
        """Raise EngineError for an image that no input can hold."""
        if length > self._longest:
            raise EngineError(
                f"the model makes {length} tokens of this image; its "
                f"context length is {self._longest}"
            )

    def prepare(self, image: Image) -> dict[str, Any]:
        """Return the model's arguments for an image without text: its tokens, patches and what
        belongs to them.
        """
        if self._has_tokens:
            text = [self._processor.image_token]
            done = self._processor(
                text=text, images=[image], add_special_tokens=False, return_tensors="pt"
            )
        else:
            done = self._processor(images=[image], return_tensors="pt")
            count = int(done["image_grid_thw"].prod()) // self._processor.merge_size**2
            done["input_ids"] = torch.full((1, count), int(self._model.config.image_token_id))
            done["mm_token_type_ids"] = torch.ones_like(done["input_ids"])
        inputs = done.to(self._model.device, dtype=self._model.dtype)
        return {name: inputs[name] for name in inputs if name in self._takes}

    @torch.no_grad()
    def compute(self, inputs: Mapping[str, Any], key: bytes) -> TorchImage:
        """Compute the states of an image."""
        given: Mapping[str, Any] = {}
        try:
            self._model(**inputs, use_cache=False)
        except _EnteredError as entered:
            given = entered.given
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release_memory(self._model.device)
            raise EngineError(
                f"out of memory on {self._model.device} for this image; send a smaller one"
            ) from error
        if given.get("inputs_embeds") is None:
            raise ValueError("its images do not take the places of tokens in its language model")
        return TorchImage(
            key=int.from_bytes(key[:8]) >> 1,
            tokens=inputs["input_ids"][0].cpu().numpy().astype(np.int32),
            positions=read_positions(given),
            states=given["inputs_embeds"][0],
            deep=[
                _spread(layer, given["visual_pos_masks"][0])
                for layer in given.get("deepstack_visual_embeds") or ()
            ],
        )


def read_positions(given: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the positions ``[axes, length]`` that a language model is given for one row."""
    positions, length = given.get("position_ids"), given["inputs_embeds"].shape[1]
    if positions is None:
        return np.arange(length)[None]
    return cast("NDArray[np.int64]", positions.reshape(-1, length).cpu().numpy())


def _spread(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Put states into their places, and zeros elsewhere."""
    return states.new_zeros(len(places), states.shape[1]).masked_scatter(places[:, None], states)


def _check_enlarged(image: Image, processor: Any) -> None:
    """Raise EngineError for a narrow image that becomes too large when its shorter edge gets the
    length of the processor.
    """
    size = dict(getattr(processor, "size", None) or {})
    edge, longest = size.get("shortest_edge"), size.get("longest_edge")
    if edge and not longest and edge**2 * max(image.size) // min(image.size) > MAX_PIXELS:
        raise EngineError(
            f"the model's processor would make more than {MAX_PIXELS} pixels of this image: "
            "it is too narrow"
        )
