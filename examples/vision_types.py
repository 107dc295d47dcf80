"""Prompts with pictures: what a chunk of each kind is, how long it counts, and a picture sent to a
model that sees it.

    python examples/vision_types.py

The packaged model reads text only, so a tiny random one of the family Qwen3-VL is made; it sees,
but knows nothing.
"""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from pathlib import Path

import tinker
from tinker import types

IMAGE, START, END = 251, 252, 253


def draw_png(width: int, height: int) -> bytes:
    """Return a red picture, as a stand-in for a file of yours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\x00" + b"\xff\x00\x00" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def main() -> None:
    picture = types.ImageChunk(data=draw_png(32, 32), format="png", expected_tokens=16)
    stored = types.ImageAssetPointerChunk(
        location="s3://bucket/cat.jpg", format="jpeg", expected_tokens=256
    )
    question = types.EncodedTextChunk(tokens=[101, 2054, 2003, 2023])

    prompt = types.ModelInput(chunks=[picture, question])
    for chunk in prompt.chunks:
        print(f"{type(chunk).__name__:16} counts as {chunk.length} tokens")
    print(f"the prompt counts as {prompt.length}")

    # Prompts are values: a longer one is a new one, and each can be plain data.
    both = prompt.append(stored)
    print(f"with the stored picture {both.length}; the first is still {prompt.length}")
    again = types.ModelInput.model_validate_json(both.model_dump_json())
    print("read back from JSON:", [type(chunk).__name__ for chunk in again.chunks])

    # How many tokens a picture becomes, the server's model decides; without a number here nobody
    # knows the length.
    unknown = types.ModelInput(
        chunks=[types.ImageChunk(data=draw_png(8, 8), format="png"), question]
    )
    try:
        length = str(unknown.length)
    except ValueError as error:
        length = f"unknown: {error}"
    print("without expected_tokens:", length)
    assert (prompt.length, both.length) == (20, 276)
    assert again == both
    with tempfile.TemporaryDirectory() as folder:
        look(make_model(Path(folder) / "tiny-vision"))


def make_model(folder: Path) -> Path:
    """Make a model with a vision tower, a tokenizer and an image processor, and
    return its folder.
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
    language = {
        "vocab_size": 258,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 16,
    }
    heads = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": 256,
        "rope_parameters": rope,
    }
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
    }
    places = {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
    config = Qwen3VLConfig(
        text_config={**language, **heads, "max_position_embeddings": 512, "initializer_range": 0.2},
        vision_config={**tower, **places, "initializer_range": 0.2},
        image_token_id=IMAGE,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    tinker.get_tokenizer("tinker/babble").save_pretrained(folder)
    settings = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def look(folder: Path) -> None:
    """Show pictures of two sizes to the model, each between the tokens that enclose one, and draw
    what it says.
    """
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(folder)
    service = tinker.ServiceClient(base_url=f"local://{folder}")
    sampler = service.create_sampling_client(base_model=folder.name)
    for width, height in (64, 64), (128, 96):
        count = processor.get_number_of_image_patches(height, width) // processor.merge_size**2
        picture = types.ImageChunk(
            data=draw_png(width, height), format="png", expected_tokens=count
        )
        enclosed = [
            types.EncodedTextChunk(tokens=[START]),
            picture,
            types.EncodedTextChunk(tokens=[END, 1, 2]),
        ]
        prompt = types.ModelInput(chunks=enclosed)
        sampled = sampler.sample(
            prompt, 1, types.SamplingParams(max_tokens=4), include_prompt_logprobs=True
        ).result(timeout=120)
        print(
            f"{width} x {height} pixels are {count} tokens; the model continues with "
            f"{len(sampled.sequences[0].tokens)}"
        )
        assert sampled.prompt_logprobs is not None
        assert len(sampled.prompt_logprobs) == prompt.length == count + 4
    service.close().result()


if __name__ == "__main__":
    main()
