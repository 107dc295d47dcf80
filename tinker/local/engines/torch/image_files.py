"""Files of images that users send: opened with Pillow, and refused before they take much time or memory."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from tinker._installation import install_command
from tinker.local.engines import EngineError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 2**25  # of one image; decoded they take 128 MB
FORMATS = {"png": "PNG", "jpeg": "JPEG"}  # what Pillow calls those of the contract


def can_open() -> bool:
    """Return whether Pillow is installed; nothing is imported."""
    return find_spec("PIL") is not None


def open_image(data: bytes, image_format: str) -> Image:
    """Read the head of a file; its pixels are not decoded yet. Raises EngineError for what is no image of that format."""
    if not can_open():
        raise EngineError(f"this server cannot read images without Pillow: {install_command('local')}")
    if image_format not in FORMATS:
        raise EngineError(f"images of the format {image_format!r} are not read; send {' or '.join(FORMATS)}")
    import PIL.Image

    too_large = EngineError(f"the image has more than {MAX_PIXELS} pixels; this server reads no larger ones")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PIL.Image.DecompressionBombWarning)  # there is a limit below
            image = PIL.Image.open(BytesIO(data), formats=[FORMATS[image_format]])
    except PIL.Image.DecompressionBombError as error:
        raise too_large from error
    except Exception as error:
        raise EngineError(f"the {len(data)} bytes are not a {FORMATS[image_format]} image") from error
    if image.width * image.height > MAX_PIXELS:
        raise too_large
    return image


def decode_image(image: Image) -> Image:
    """Decode the pixels, turned as the camera noted. Raises EngineError for a damaged file."""
    from PIL.ImageOps import exif_transpose

    try:
        image.load()
        return exif_transpose(image)
    except Exception as error:
        raise EngineError(f"the image is damaged: {error}") from error
