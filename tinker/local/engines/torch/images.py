"""Images: files opened with Pillow within limits, and the states that a model's tower makes of
them, which no adapter changes.

The kinds of models are those whose images have rotary positions in rows and columns. The tower of
some gives states for the first layers too (DeepStack).
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)
# (torch is typed in part only)

from __future__ import annotations

import hashlib
import logging
import warnings
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from tinker._installation import install_command
from tinker.local.engines.protocol import EngineError, Int32, PlacedImage, is_out_of_memory
from tinker.local.engines.torch.memory import release_memory

if TYPE_CHECKING:
    from PIL.Image import Image

# Rows with images in a pass: the positions of their tokens, and the states that take the place of
# embeddings.
#
# An image's positions have three coordinates: that of its beginning, plus a row, plus a column.
# What follows goes on behind the largest, so that a sequence with images has fewer positions than
# tokens. Text has the same number three times.

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
        grid = np.stack(
            [np.zeros(image.length, np.int64), *divmod(np.arange(image.length), image.columns)]
        )
        found[:, placed.start : end] = number + grid[:, : end - placed.start]
        at, number = end, number + max(image.rows, image.columns)
    found[:, at:] = np.arange(number, number + length - at)
    return found


def count_shift(images: Sequence[PlacedImage]) -> int:
    """Return the difference between position and index of a token after these images."""
    return sum(
        max(content_of(one).rows, content_of(one).columns) - one.image.length for one in images
    )


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
            for placed, start, end in _find_overlaps(row, columns):
                mask[number, start - columns.start : end - columns.start] = True
                begin = row.first + placed.start
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


def _find_overlaps(row: ImageRow, columns: slice) -> Iterator[tuple[PlacedImage, int, int]]:
    """Yield the images of a row that lie in these columns, with the first column there and the one
    behind the last.
    """
    for placed in row.images:
        start, end = (
            max(columns.start, row.first + placed.start),
            min(columns.stop, row.first + placed.end),
        )
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


log: logging.Logger = logging.getLogger("tinker.local")
MAX_PIXELS = 2**25  # of one image; decoded they take 128 MB
FORMATS = {"png": "PNG", "jpeg": "JPEG"}  # what Pillow calls those of the contract


def can_open() -> bool:
    """Return whether Pillow is installed; nothing is imported."""
    return find_spec("PIL") is not None


def open_image(data: bytes, image_format: str) -> Image:
    """Read the header of an image file, without decoding it. Raises EngineError if it is not of
    that format.
    """
    if not can_open():
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


def decode_image(image: Image) -> Image:
    """Decode the pixels, rotated by their EXIF orientation. Raises EngineError for
    a damaged file.
    """
    from PIL.ImageOps import exif_transpose

    try:
        image.load()
        return exif_transpose(image)
    except Exception as error:
        raise EngineError(f"the image is damaged: {error}") from error


IMAGE_KINDS = frozenset(
    {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"}
)
MAX_NBYTES = 2**28  # of the states of images that are kept for the next request


@attrs.frozen(kw_only=True, eq=False)
class TorchImage:
    """An image as the language model takes it: ``states`` ``[length, size]`` for its input,
    ``deep`` for the first layers.

    ``rows`` and ``columns`` are its positions. ``key`` tells it from other images.
    """

    key: int
    rows: int
    columns: int
    states: torch.Tensor
    deep: Sequence[torch.Tensor]

    @property
    def length(self) -> int:
        """Return how many positions it takes."""
        return self.rows * self.columns

    @property
    def nbytes(self) -> int:
        """Return the memory of its states."""
        return sum(tensor.nbytes for tensor in (self.states, *self.deep))


class TorchImages:
    """An ImageReader: Pillow opens a file, the processor of the model cuts it up, and the model's
    tower computes its states.
    """

    def __init__(self, model: Any, source: str, processor: Any, longest: int) -> None:
        self._model, self._longest, self._processor = model, longest, processor
        self._merge = int(model.config.vision_config.spatial_merge_size)
        self._kept: OrderedDict[bytes, TorchImage] = OrderedDict()
        self._check_tower(source)

    def _check_tower(self, source: str) -> None:
        """Raise ValueError where this transformers does not answer with the states of an image as
        newer ones do.
        """
        tower = self._model.config.vision_config
        values = tower.in_channels * tower.temporal_patch_size * tower.patch_size**2
        patches = torch.zeros(self._merge**2, values, device=self._model.device)
        grid = torch.tensor([[1, self._merge, self._merge]], device=self._model.device)
        with torch.no_grad():
            done = self._model.model.get_image_features(patches, grid)
        if not hasattr(done, "pooler_output"):
            raise ValueError(
                f"{source} reads images, which needs a newer transformers than "
                f"{transformers.__version__}"
            )

    @property
    def token(self) -> int:
        return int(self._model.config.image_token_id)

    def read(self, data: bytes, image_format: str) -> TorchImage:
        key = hashlib.sha256(image_format.encode() + b":" + data).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        image = self._kept[key] = self._compute(key, self._open(data, image_format))
        while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > MAX_NBYTES:
            self._kept.popitem(last=False)
        return image

    def _open(self, data: bytes, image_format: str) -> dict[str, torch.Tensor]:
        """Return the patches of an image, and how many there are in each direction."""
        image = open_image(data, image_format)
        self._check_length(image)
        decoded = decode_image(image)
        try:
            done = self._processor(images=[decoded], return_tensors="pt")
        except Exception as error:
            raise EngineError(f"the model's processor does not take this image: {error}") from error
        return {
            name: done[name].to(self._model.device) for name in ("pixel_values", "image_grid_thw")
        }

    def _check_length(self, image: Image) -> None:
        """Raise EngineError for an image that no input can hold, or that is too narrow, before it
        is decoded.
        """
        try:
            patches = int(self._processor.get_number_of_image_patches(image.height, image.width))
        except ValueError as error:
            raise EngineError(f"the model's processor does not take this image: {error}") from error
        if (length := patches // self._merge**2) > self._longest:
            raise EngineError(
                f"the model makes {length} tokens of this image; its "
                f"context length is {self._longest}"
            )

    @torch.no_grad()
    def _compute(self, key: bytes, inputs: dict[str, torch.Tensor]) -> TorchImage:
        try:
            done = self._model.model.get_image_features(**inputs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            release_memory(self._model.device)
            raise EngineError(
                f"out of memory on {self._model.device} for this image; send a smaller one"
            ) from error
        _, rows, columns = inputs["image_grid_thw"][0].tolist()
        return TorchImage(
            key=int.from_bytes(key[:8]) >> 1,
            rows=rows // self._merge,
            columns=columns // self._merge,
            states=done.pooler_output[0],
            deep=[part[0] for part in getattr(done, "deepstack_features", None) or ()],
        )


def reads_images(config: Any) -> bool:
    """Return whether models of this kind are run here with their tower for images."""
    return config.model_type in IMAGE_KINDS


def open_reader(model: Any, source: str, longest: int) -> TorchImages | None:
    """Return what reads the images of a model; None if it reads none, or its folder does not say
    how they are prepared.
    """
    if not reads_images(model.config):
        return None
    kind: Any = transformers.AutoImageProcessor
    try:
        processor = kind.from_pretrained(source, trust_remote_code=False) if can_open() else None
    except (OSError, ValueError):
        log.warning(
            "%s has no preprocessor_config.json that says how images are "
            "prepared: they are refused",
            source,
        )
        return None
    return TorchImages(model, source, processor, longest)
