# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Images in training and sampling, compared with plain transformers and PEFT, and
refused images.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

for needed in ("torch", "transformers", "peft", "PIL"):
    pytest.importorskip(needed)

import torch
import transformers
from PIL import Image
from support.compared import pick
from support.engine_inputs import compute, finish, only, tokens_of
from support.families import FAMILIES, IMAGE, VISION_END, VISION_START, Family, write_family
from support.read_images import ReadImages, ReadingModel, make_chunk, make_image, make_value
from support.seeing_kinds import APART, BOTH_WAYS, READ
from support.seeing_kinds import Seeing as Kind
from support.tallied import open_batch
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_pass

import tinker
from tinker import types
from tinker.local.engines.protocol import (
    EngineError,
)
from tinker.local.engines.torch import TorchEngine, images, sampling
from tinker.local.engines.torch.images import find_positions
from tinker.local.engines.torch.sampling import Prefixes
from tinker.local.handlers.common import read_input
from tinker.types import EncodedTextChunk, ImageAssetPointerChunk, ImageChunk, ModelInput

LLAVA, IDEFICS, GLM = READ[:3]
WIDE, TALL, SMALL = (33, 20), (12, 40), (8, 8)


def text(length: int, seed: int = 0) -> EncodedTextChunk:
    return EncodedTextChunk(tokens=np.random.default_rng([length, seed]).integers(0, 250, length))


def show(*sizes: tuple[int, int], seed: int = 0, last: int = 4) -> ModelInput:
    """Alternate text and images as chat templates do."""
    chunks: list[Any] = [text(3, seed)]
    for number, size in enumerate(sizes):
        marks = (EncodedTextChunk(tokens=[token]) for token in (VISION_START, VISION_END))
        chunks += [next(marks), make_chunk(size, seed + number), next(marks)]
    return ModelInput(chunks=[*chunks, text(last, seed)])


@attrs.frozen(eq=False, kw_only=True)
class Seeing(ReadingModel):
    """A family's model, whose inputs are tokens and images between them."""

    layers: int = 2
    times: int = 1
    longest: int = 30

    def read(self, value: ModelInput) -> Any:
        return read_input(self.engine, value, "the prompt")

    def inputs(self, value: ModelInput, more: Sequence[int] = ()) -> dict[str, Any]:
        """Return what its processor makes of the images, and placeholders in the text; no padding."""
        ids: list[int] = []
        opened: list[Any] = []
        for chunk in value.chunks:
            if isinstance(chunk, ImageChunk):
                opened.append(Image.open(io.BytesIO(chunk.data)))
                grid = self.processor(images=opened[-1:], return_tensors="pt")["image_grid_thw"]
                ids += [IMAGE] * (int(grid.prod()) // 4)
            else:
                assert isinstance(chunk, EncodedTextChunk)
                ids += chunk.tokens
        tokens = torch.tensor([[*ids, *more]])
        seen = dict(self.processor(images=opened, return_tensors="pt")) if opened else {}
        kinds = {"mm_token_type_ids": (tokens == IMAGE).int()} if opened else {}
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **seen, **kinds}


SEEING = [family for family in FAMILIES if family.reads_images]


@pytest.fixture(scope="module", params=SEEING, ids=lambda family: family.name)
def seeing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seeing]:
    """Each family in turn."""
    family: Family = request.param
    folder = tmp_path_factory.mktemp("seeing")
    directory = write_family(family, folder / "model")
    engine = TorchEngine(directory, device="cpu")
    processor = transformers.AutoImageProcessor.from_pretrained(directory)
    base = getattr(transformers, family.model).from_pretrained(directory, dtype=torch.float32)
    yield Seeing(engine=engine, processor=processor).train(show(WIDE), folder, base)
    engine.drop_adapter("a")


@pytest.mark.parametrize("size", [WIDE, TALL, SMALL, (1, 1), (200, 150), (48, 48)], ids=str)
def test_an_image_takes_as_many_positions_as_its_processor_makes(
    seeing: Seeing, size: tuple[int, int]
) -> None:
    """The number of positions of an image is the processor's, which enlarges small images and
    shrinks large ones.
    """
    tokens, (placed,) = read_input(seeing.engine, show(size), "the prompt")
    expected = seeing.inputs(show(size))["input_ids"][0]
    assert tokens.tolist() == expected.tolist()
    assert placed.start == 4
    assert placed.end - placed.start == int((expected == IMAGE).sum())


def test_positions_are_those_of_the_model(seeing: Seeing) -> None:
    """Positions of text, of images between text, and of a prefix that ends in an image are the
    model's.
    """
    value = show(WIDE, TALL)
    tokens, placed = read_input(seeing.engine, value, "the prompt")
    inputs = {name: one for name, one in seeing.inputs(value).items() if name != "pixel_values"}
    expected, delta = seeing.plain.base_model.model.model.get_rope_index(**inputs)
    for length in (len(tokens), placed[0].start + 3, 2):
        np.testing.assert_array_equal(find_positions(placed, length), expected[:, 0, :length])
    further = find_positions(placed, len(tokens) + 2)[:, -1]
    assert further.tolist() == [len(tokens) + 1 + int(delta)] * 3


@pytest.mark.numeric
def test_training_equals_peft(seeing: Seeing) -> None:
    """Log-probabilities of rows with and without images in one call, and every matrix's gradient,
    are PEFT's.
    """
    seeing.assert_trains([show(WIDE), show(last=9), show(TALL, SMALL, seed=5), show(SMALL, last=8)])


def test_an_image_decides_what_is_learned(seeing: Seeing) -> None:
    """Another image of the same size changes the log-probabilities after it and not those before
    it.
    """
    chunks = show(WIDE).chunks
    pair = [
        seeing.example(ModelInput(chunks=[*chunks[:2], make_chunk(WIDE, seed), *chunks[3:]]))
        for seed in (1, 2)
    ]
    first, second = compute(seeing.engine, "a", pair, backward=False).outputs
    assert_near(first["logprobs"][:4], second["logprobs"][:4], terms_of_pass(30))
    assert np.abs(first["logprobs"][-4:] - second["logprobs"][-4:]).max() > 1e-3


@pytest.mark.parametrize("is_base", [True, False], ids=["base", "adapter"])
def test_greedy_samples_equal_generate(seeing: Seeing, is_base: bool) -> None:
    """A greedy sample is what plain transformers generates from the same images, and each token of
    the prompt is scored given the images before it.
    """
    weights = None if is_base else seeing.adapter
    seeing.assert_samples([show(WIDE), show(TALL, SMALL, seed=7)], weights)


def test_samples_with_images_share_a_batch(seeing: Seeing) -> None:
    """Rows with and without images, of different lengths and of two sets of weights, draw the same
    as alone.
    """
    values = [
        show(WIDE),
        show(last=12),
        show(TALL, SMALL, seed=3),
        show(WIDE, seed=1),
        show(SMALL, last=2),
    ]
    jobs = [
        seeing.job(value, seeing.adapter if number % 2 else None, seed=number, num_samples=2)
        for number, value in enumerate(values)
    ]
    alone = [sample_jobs(seeing.engine, [one])[0] for one in jobs]
    seeing.engine._parts.prefixes = Prefixes()
    batch, done = open_batch(seeing.engine, 1000), dict[Any, Any]()
    for number in range(14):
        if number < len(jobs):
            batch.add(number, jobs[number])
        done.update(batch.step())
    for number, value in enumerate(values):
        assert tokens_of(done[number]) == tokens_of(alone[number])
        for ours in done[number].sequences:
            check_drawn(seeing, value, ours, is_base=number % 2 == 0)


def check_drawn(seeing: Seeing, value: ModelInput, ours: Any, *, is_base: bool = False) -> None:
    """Check that the log-probabilities of the drawn tokens are PEFT's in one pass over the whole.

    A placeholder that was drawn ends the comparison, because transformers looks for its image.
    """
    tokens = ours.tokens.astype(np.int64)
    tokens = tokens[: tokens.tolist().index(IMAGE) if IMAGE in tokens else None]
    with torch.no_grad():
        table = seeing.table(value, tokens.tolist(), is_base=is_base)[-len(tokens) - 1 : -1]
    assert_near(ours.logprobs[: len(tokens)], pick(table, tokens), terms_of_pass(50))


@pytest.mark.parametrize("width", [1, 5, 7])
def test_a_prompt_goes_through_in_pieces(
    seeing: Seeing, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A prompt can be split into pieces anywhere, also within an image."""
    monkeypatch.setattr(sampling, "PIECE_TOKENS", width)
    seeing.engine._parts.prefixes = Prefixes()
    value = show(WIDE, TALL, seed=4)
    batch = open_batch(seeing.engine, 1000)
    batch.add("pieces", seeing.job(value, seeing.adapter, seed=1))
    done = finish(batch, 1)
    assert batch.tally.passes > 4
    check_drawn(seeing, value, done["pieces"].sequences[0])


def test_the_next_turn_keeps_the_image(seeing: Seeing) -> None:
    """The states of an image are reused in the next turn, and not for another image of the same
    size.
    """
    seeing.engine._parts.prefixes = Prefixes()
    value = show((48, 48), last=30)
    other = ModelInput(
        chunks=[make_chunk((48, 48), 9) if isinstance(c, ImageChunk) else c for c in value.chunks]
    )
    batch, computed = open_batch(seeing.engine, 1000), list[int]()
    for number, one in enumerate((value, ModelInput(chunks=[*value.chunks, text(5)]), other)):
        before = batch.tally.real
        batch.add(number, seeing.job(one, seeing.adapter, seed=1, max_tokens=1))
        ((_, result),) = batch.step()
        computed.append(batch.tally.real - before)
        check_drawn(seeing, one, result.sequences[0])
    length = seeing.job(value, None).tokens.size
    last = int(batch._is_whole)  # a state as a whole is that before the last token of its prompt
    assert computed == [length, last + 5, length]


def test_rows_that_wait_begin_again(seeing: Seeing) -> None:
    """A sample that waits for room continues with its image, also when its cache is
    computed again.
    """
    seeing.engine._parts.prefixes = Prefixes()
    values = [show(WIDE, seed=number) for number in range(2)]
    batch = open_batch(seeing.engine, 40)
    for number, value in enumerate(values):
        batch.add(number, seeing.job(value, seeing.adapter, seed=number, max_tokens=12))
    done = finish(batch, 2)
    for number, value in enumerate(values):
        check_drawn(seeing, value, done[number].sequences[0])


def test_an_image_goes_through_the_tower_once(seeing: Seeing) -> None:
    """An image passes the tower once for all requests, and equal prompts are computed once."""
    calls = list[int]()
    assert isinstance(seeing.engine.image_reader, images.TorchImages)
    handle = seeing.engine.image_reader._model.model.visual.register_forward_hook(
        lambda *_: calls.append(1)
    )
    seeing.engine._parts.prefixes = Prefixes()
    value, batch = show(WIDE, seed=77), open_batch(seeing.engine, 1000)
    for number in range(4):
        batch.add(number, seeing.job(value, seeing.adapter, seed=number, max_tokens=1))
    assert len(batch.step()) == 4
    handle.remove()
    assert (len(calls), batch.tally.real) == (1, seeing.job(value, None).tokens.size)


def test_old_images_are_forgotten(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states kept stay within the limit, except for a single image that is larger."""
    reader = seeing.engine.image_reader
    assert reader is not None
    one = reader.read(make_image(WIDE, 500), "png")
    monkeypatch.setattr(images, "MAX_NBYTES", 2 * one.nbytes)
    for seed in range(501, 505):
        reader.read(make_image(WIDE, seed), "png")
    assert len(reader._kept) == 2
    monkeypatch.setattr(images, "MAX_NBYTES", 1)
    assert len(reader.read(make_image(WIDE, 600), "png").tokens) == len(one.tokens)
    assert len(reader._kept) == 1


def test_the_id_of_images_is_a_token_like_others_in_text(seeing: Seeing) -> None:
    """A model can draw the image id in text, and the drawn token passes through the model like any
    other.
    """
    value = ModelInput(chunks=[*show(SMALL).chunks, EncodedTextChunk(tokens=[IMAGE, 7])])
    sample_jobs(seeing.engine, [seeing.job(value, None, max_tokens=1)])
    plain = EncodedTextChunk(tokens=[1, IMAGE, 7])
    compute(seeing.engine, "a", [seeing.example(ModelInput(chunks=[plain]))], backward=False)


# Refused images


def claim_size(width: int, height: int) -> bytes:
    """Make a PNG that declares a size and has no content."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + head
        + struct.pack(">I", zlib.crc32(head))
        + b"\0\0\1\0IDAT"
    )


BROKEN = {
    "empty": (b"", "png", "the 0 bytes are not a PNG image"),
    "noise": (b"\x89PNG\r\n\x1a\n...", "png", "bytes are not a PNG image"),
    "another format": (make_image(SMALL, kind="JPEG"), "png", "bytes are not a PNG image"),
    "truncated": (make_image((48, 48))[:900], "png", "the image is damaged"),
    "a bomb": (claim_size(60_000, 60_000), "png", "the image has more than 33554432 pixels"),
    "a smaller bomb": (
        claim_size(2**15, 2**10 + 1),
        "png",
        "the image has more than 33554432 pixels",
    ),
    "the largest": (claim_size(2**15, 2**10), "png", "the image is damaged"),
    "too narrow": (make_image((1, 300)), "png", "the model's processor does not take this image"),
    "an unknown format": (
        make_image(SMALL),
        "webp",
        "the format 'webp' are not read; send png or jpeg",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_image_is_refused(seeing: Seeing, kind: str) -> None:
    """Bytes that are not an image are refused in one sentence, without allocating memory first."""
    data, image_format, sentence = BROKEN[kind]
    assert seeing.engine.image_reader is not None
    with pytest.raises(EngineError, match=sentence):
        seeing.engine.image_reader.read(data, image_format)


def test_an_image_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    """An image longer than the context is refused before it is decoded."""
    family = attrs.evolve(SEEING[0], options={**SEEING[0].options, "max_position_embeddings": 16})
    engine = TorchEngine(write_family(family, tmp_path), device="cpu")
    assert engine.image_reader is not None
    with pytest.raises(
        EngineError, match="the model makes 36 tokens of this image; its context length is 16"
    ):
        engine.image_reader.read(claim_size(48, 48), "png")


def test_a_jpeg_is_turned_as_the_camera_noted(seeing: Seeing) -> None:
    """A JPEG is rotated by its EXIF orientation before the processor reads it."""
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    assert isinstance(seeing.engine.image_reader, images.TorchImages)
    turned = seeing.engine.image_reader.read(make_image(TALL, 1, "JPEG", exif=exif), "jpeg")
    plain = seeing.engine.image_reader.read(make_image(TALL, 1, "JPEG"), "jpeg")
    assert turned.positions.max(axis=1).tolist() == plain.positions.max(axis=1)[[0, 2, 1]].tolist()


def test_without_pillow_text_goes_on(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without Pillow tells clients that send images what to install, and accepts text."""
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match="cannot read images without Pillow: pip install"):
        read_input(seeing.engine, show(SMALL, seed=800), "the prompt")
    read_input(seeing.engine, show(last=5), "the prompt")


def test_a_folder_without_settings_for_images_takes_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that does not say how images are prepared is for text, which the log says; images
    are refused.
    """
    (write_family(SEEING[0], tmp_path) / "preprocessor_config.json").unlink()
    engine = TorchEngine(tmp_path, device="cpu")
    assert "has no preprocessor_config.json" in caplog.text
    read_input(engine, show(last=5), "the prompt")
    with pytest.raises(EngineError, match="image"):
        read_input(engine, show(SMALL), "the prompt")


@pytest.mark.parametrize("kind", [BOTH_WAYS, APART], ids=lambda kind: kind.model_type)
def test_images_that_are_not_read_forwards_are_refused(kind: Kind, tmp_path: Path) -> None:
    """Where tokens of an image see those after them, or an image is apart from the tokens, text works and images are refused.

    The error of the request says why.
    """
    engine = TorchEngine(kind.write(tmp_path), device="cpu")
    sentence = (
        "it does not read images forwards only"
        if kind is BOTH_WAYS
        else "its images do not take the places of tokens"
    )
    with pytest.raises(
        EngineError,
        match=f"the prompt: chunk 2: this server reads no images with this model: {sentence}",
    ):
        read_input(engine, show(SMALL), "the prompt")
    tokens, _ = read_input(engine, show(last=5), "the prompt")
    assert len(only(engine, tokens=tokens, max_tokens=2).tokens) == 2


def test_a_processor_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor for which a package is missing is named in the refusal, and text works."""
    directory = IDEFICS.write(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise ImportError(
            "\nIdefics3Processor requires the Torchvision library but it was not found. See the page\nof it."
        )

    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", fail)
    engine = TorchEngine(directory, device="cpu")
    with pytest.raises(
        EngineError,
        match=r"Idefics3Processor requires the Torchvision library but it was not found$",
    ):
        read_input(engine, show(SMALL), "the prompt")


def test_a_model_whose_tower_fails_takes_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose tower does not work in this transformers is loaded for text, and images are refused with its error."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no tower\nin this version")

    monkeypatch.setattr(transformers.Qwen3VLModel, "get_image_features", fail)
    engine = TorchEngine(write_family(SEEING[0], tmp_path), device="cpu")
    with pytest.raises(EngineError, match="this server reads no images with this model: no tower"):
        read_input(engine, show(SMALL), "the prompt")


def test_an_image_that_its_processor_would_enlarge_too_much_is_refused(tmp_path: Path) -> None:
    """A processor that gives the shorter edge a length would make a huge image of a narrow one, which is refused before."""
    engine = TorchEngine(LLAVA.write(tmp_path), device="cpu")
    assert engine.image_reader is not None
    with pytest.raises(
        EngineError, match="would make more than 33554432 pixels of this image: it is too narrow"
    ):
        engine.image_reader.read(claim_size(1, 2**18), "png")


# Images between other tokens of their processor


@pytest.mark.numeric
@pytest.mark.parametrize("kind", [IDEFICS, GLM], ids=lambda kind: kind.model_type)
def test_tokens_of_a_processor_are_read(kind: Kind, tmp_path: Path) -> None:
    """Tiles with marks between them, and grids of another family, are trained and sampled as with plain transformers."""
    read = ReadImages.make(kind, tmp_path)
    values = [make_value(3), make_value(2, (33, 20)), make_value(4, (12, 40), (24, 24))]
    assert [read.tokens(value) for value in values] == [
        read.inputs(value)["input_ids"][0].tolist() for value in values
    ]
    read.assert_trains(values)
    read.assert_samples(values, read.adapter)


def test_a_tower_of_as_many_layers_is_proved_whole(tmp_path: Path) -> None:
    """The proof takes the first layers of the language model, and all of a tower that has as many."""
    layers = {"num_hidden_layers": 4}
    kind = attrs.evolve(LLAVA, text=layers, vision=layers)
    assert isinstance(
        TorchEngine(kind.write(tmp_path), device="cpu").image_reader, images.TorchImages
    )


# Over HTTP


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tinker.ServiceClient]:
    """Yield a client of a server with a model that reads images."""
    directory = write_family(SEEING[0], tmp_path_factory.mktemp("served") / "vision")
    with tinker.ServiceClient(
        base_url=f"local://{directory}?device=cpu", api_key="tml-test"
    ) as client:
        yield client


def datum(image: ImageChunk | ImageAssetPointerChunk, length: int) -> types.Datum:
    value = ModelInput(chunks=[text(3), image, text(2)])
    weights = [0.0] * (3 + length) + [1.0, 1.0]
    return types.Datum(
        model_input=value, loss_fn_inputs={"target_tokens": [1] * (5 + length), "weights": weights}
    )


def test_a_run_on_images_over_http(service: tinker.ServiceClient) -> None:
    """Training, sampling and scoring with one image chunk work over HTTP."""
    image = make_chunk(WIDE, expected_tokens=8)
    training = service.create_lora_training_client("vision", rank=4)
    losses = list[float]()
    for _ in range(3):
        done = training.forward_backward([datum(image, 8)], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=0.01))
        losses.append(done.result().metrics["loss:sum"])
    assert losses[2] < losses[0]
    sampler = training.save_weights_and_get_sampling_client()
    prompt = ModelInput(chunks=[text(3), image])
    drawn = sampler.sample(prompt, 1, types.SamplingParams(max_tokens=3)).result().sequences[0]
    assert len(drawn.tokens) <= 3
    assert len(sampler.compute_logprobs(prompt).result()) == 11


def test_a_wrong_image_fails_its_own_request(service: tinker.ServiceClient) -> None:
    """The error names the datum and both numbers, and the run continues with the next call."""
    training = service.create_lora_training_client("vision", rank=2)
    good, broken = (
        ImageChunk(data=data, format="png", expected_tokens=8)
        for data in (make_image(WIDE), b"nothing")
    )
    wrong = attrs.evolve(good, expected_tokens=9)
    pointer = ImageAssetPointerChunk(
        format="png", location="https://example.com/a.png", expected_tokens=8
    )
    refused = [
        (
            datum(wrong, 9),
            r"data\[1\]: chunk 1: expected_tokens is 9, and the model makes 8 tokens of this image",
        ),
        (datum(broken, 8), r"data\[1\]: chunk 1: the 7 bytes are not a PNG image"),
    ]
    for bad, sentence in refused:
        with pytest.raises(tinker.RequestFailedError, match=sentence):
            training.forward([datum(good, 8), bad], "cross_entropy").result()
    training.forward([datum(good, 8)], "cross_entropy").result()
    sampler = service.create_sampling_client(base_model="vision")
    for chunk, sentence in (
        (wrong, "the prompt: chunk 0: expected_tokens is 9"),
        (pointer, "chunk 0 points to an image"),
    ):
        with pytest.raises(tinker.RequestFailedError, match=sentence):
            sampler.sample(
                ModelInput(chunks=[chunk]), 1, types.SamplingParams(max_tokens=1)
            ).result()
