"""Images in inputs, for engines whose model reads them. An image takes as many positions as the model makes tokens of it."""

from __future__ import annotations

from typing import Protocol

import attrs


class EngineImage(Protocol):
    """An image as an engine has read it; only that engine knows what is in it."""

    @property
    def length(self) -> int:
        """Return how many positions it takes."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class PlacedImage:
    """An image in an input: ``tokens[start : start + image.length]`` stand for it."""

    start: int
    image: EngineImage

    @property
    def end(self) -> int:
        """Return the position behind it."""
        return self.start + self.image.length


class ImageReader(Protocol):
    """Reads images for one model. Used in the engine's thread."""

    @property
    def token(self) -> int:
        """Return the token id that stands at each position of an image."""
        ...

    def read(self, data: bytes, image_format: str) -> EngineImage:
        """Read the bytes of a file. Raises EngineError, in words for the user, for those that are no image of that format."""
        ...
