"""Small random models that read images, of kinds with a processor of their own, and the processors, made without a hub."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers

from support.small_configs import OTHERS, TOWERS, Kind, find_class
from tinker.local.engines import PACKAGED_FOLDER

COLORS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
GRID = {"patch_size": 8, "merge_size": 2, "temporal_patch_size": 2}
TILES = [f"{row}_col_{column}" for row in range(1, 5) for column in range(1, 5)]
SMOL = [
    "<fake_token_around_image>",
    "<end_of_utterance>",
    "<global-img>",
    "<video>",
    *(f"<row_{tile}>" for tile in TILES),
]
LFM = [
    "<|image_start|>",
    "<|image_end|>",
    "<|img_thumbnail|>",
    *(f"<|img_row_{tile}|>" for tile in TILES),
]
INTERN = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<v>",
}
GEMMA = {
    "boi_token": "<start_of_image>",
    "eoi_token": "<end_of_image>",
    "image_token": "<image_soft_token>",
}
GLM = [
    "<|video|>",
    "<|begin_of_image|>",
    "<|end_of_image|>",
    "<|begin_of_video|>",
    "<|end_of_video|>",
]
SQUARE = {"height": 16, "width": 16}


@attrs.frozen
class Seeing:
    """A kind: the token of an image, other tokens that its processor writes, its processor, and the options of its model.

    ``places`` are the names that the configuration has for token ids. ``writes_tokens``: its processor is one of text and images.
    ``needs``: packages without which transformers does not make that.
    """

    model_type: str
    token: str
    processor: Callable[[Any], Any]
    more: Sequence[str] = ()
    names: Mapping[str, str] = {}
    places: Mapping[str, str] = {}
    options: Mapping[str, Any] = {}
    text: Mapping[str, Any] = {}
    vision: Mapping[str, Any] = {}
    writes_tokens: bool = True
    needs: Sequence[str] = ()

    @property
    def lacking(self) -> list[str]:
        """Return the packages that are missing here."""
        return [name for name in self.needs if find_spec(name) is None]

    def make_tokenizer(self) -> Any:
        """Make the packaged tokenizer with these tokens."""
        made = transformers.AutoTokenizer.from_pretrained(PACKAGED_FOLDER)
        made.add_special_tokens(
            {"additional_special_tokens": [self.token, *self.more, *self.names.values()]}
        )
        kind: Any = transformers.PreTrainedTokenizerFast
        ends = {
            "bos_token": made.eos_token,
            "eos_token": made.eos_token,
            "pad_token": made.pad_token,
        }
        return kind(
            tokenizer_object=made.backend_tokenizer, **ends, extra_special_tokens=dict(self.names)
        )

    def write(self, directory: Path) -> Path:
        """Write a random model, its tokenizer and its processor."""
        torch.manual_seed(0)
        tokenizer = self.make_tokenizer()
        kind = {one.model_type: one for one in [*TOWERS, *OTHERS, Kind("mllama")]}[self.model_type]
        config = kind.make_config()
        for part in (config, config.get_text_config(decoder=True)):
            if getattr(part, "vocab_size", None) is not None:
                part.vocab_size = len(tokenizer)
        places = {"image_token_id": self.token, **self.places}
        changes = {
            **self.options,
            **{name: tokenizer.convert_tokens_to_ids(one) for name, one in places.items()},
        }
        for name, value in changes.items():
            setattr(config, name, value)
        for part, options in ((config.text_config, self.text), (config.vision_config, self.vision)):
            for name, value in options.items():
                setattr(part, name, value)
        config = type(config)(**config.to_dict())
        find_class(config)(config).save_pretrained(directory)
        self.processor(tokenizer).save_pretrained(directory)
        tokenizer.save_pretrained(directory)
        return directory


def _make(name: str, **options: Any) -> Any:
    """Make a processor of images; that of Pillow where there are two."""
    kind = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    return kind(**{**COLORS, **options})


def _glm(name: str) -> Callable[[Any], Any]:
    return lambda _: _make(name, **GRID, size={"shortest_edge": 16 * 16, "longest_edge": 64 * 64})


def _glm_places() -> dict[str, str]:
    names = (
        "video_token_id",
        "image_start_token_id",
        "image_end_token_id",
        "video_start_token_id",
        "video_end_token_id",
    )
    return dict(zip(names, GLM, strict=True))


def _mistral(tokenizer: Any) -> Any:
    made = _make("PixtralImageProcessor", patch_size=4, size={"longest_edge": 32})
    return transformers.PixtralProcessor(made, tokenizer, patch_size=4, spatial_merge_size=2)


def _llava(tokenizer: Any) -> Any:
    made = _make("CLIPImageProcessor", size={"shortest_edge": 16}, crop_size=SQUARE)
    options = {
        "patch_size": 8,
        "vision_feature_select_strategy": "default",
        "num_additional_image_tokens": 1,
    }
    return transformers.LlavaProcessor(made, tokenizer, **options)


def _idefics(tokenizer: Any) -> Any:
    made = _make(
        "Idefics3ImageProcessor", size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
    )
    return transformers.Idefics3Processor(made, tokenizer, image_seq_len=4)


def _smolvlm(tokenizer: Any) -> Any:
    made = _make(
        "SmolVLMImageProcessor", size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
    )
    return transformers.SmolVLMProcessor(
        made, tokenizer, transformers.SmolVLMVideoProcessor(), image_seq_len=4
    )


def _internvl(tokenizer: Any) -> Any:
    made = _make("GotOcr2ImageProcessor", size=SQUARE, crop_to_patches=True, max_patches=4)
    return transformers.InternVLProcessor(
        made, tokenizer, transformers.InternVLVideoProcessor(), image_seq_length=4
    )


def _lfm(tokenizer: Any) -> Any:
    tiles = {
        "tile_size": 32,
        "min_tiles": 2,
        "max_tiles": 4,
        "max_num_patches": 64,
        "downsample_factor": 2,
    }
    tokens = {"encoder_patch_size": 8, "min_image_tokens": 2, "max_image_tokens": 8}
    return transformers.Lfm2VlProcessor(_make("Lfm2VlImageProcessor", **tiles, **tokens), tokenizer)


def _gemma(tokenizer: Any) -> Any:
    return transformers.Gemma3Processor(
        _make("Gemma3ImageProcessor", size=SQUARE), tokenizer, image_seq_length=4
    )


def _mllama(tokenizer: Any) -> Any:
    return transformers.MllamaProcessor(_make("MllamaImageProcessor", size=SQUARE), tokenizer)


TORCHVISION = ["torchvision"]
SMALL = {"patch_size": 4, "image_size": 16}
READ = [
    Seeing("llava", "<image>", _llava),
    Seeing("idefics3", "<image>", _idefics, SMOL, options={"scale_factor": 2}, vision=SMALL),
    Seeing(
        "glm4v",
        "<|image|>",
        _glm("Glm4vImageProcessor"),
        GLM,
        places=_glm_places(),
        writes_tokens=False,
    ),
    Seeing(
        "glm4v_moe",
        "<|image|>",
        _glm("Glm4vImageProcessor"),
        GLM,
        places=_glm_places(),
        writes_tokens=False,
    ),
    Seeing(
        "glm46v",
        "<|image|>",
        _glm("Glm46VImageProcessor"),
        GLM,
        places=_glm_places(),
        writes_tokens=False,
    ),
    Seeing(
        "mistral3",
        "[IMG]",
        _mistral,
        ["[IMG_BREAK]", "[IMG_END]"],
        options={"spatial_merge_size": 2},
        vision={"patch_size": 4, "image_size": 32},
        needs=TORCHVISION,
    ),
    Seeing(
        "smolvlm",
        "<image>",
        _smolvlm,
        SMOL,
        options={"scale_factor": 2},
        vision=SMALL,
        needs=[*TORCHVISION, "num2words"],
    ),
    Seeing(
        "internvl",
        "<IMG_CONTEXT>",
        _internvl,
        names=INTERN,
        vision={"patch_size": [4, 4], "image_size": [16, 16]},
        needs=TORCHVISION,
    ),
    Seeing("lfm2_vl", "<image>", _lfm, LFM, needs=TORCHVISION),
    Seeing(
        "kimi_k25",
        "<|media_pad|>",
        lambda _: _make("Kimi_K25ImageProcessor", patch_size=8, merge_size=2),
        options={"projection_hidden_size": 32},
        writes_tokens=False,
        needs=TORCHVISION,
    ),
]
BOTH_WAYS = Seeing(
    "gemma3",
    "<image_soft_token>",
    _gemma,
    names=GEMMA,
    places={"boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
    options={"mm_tokens_per_image": 4},
    vision=SMALL,
)
APART = Seeing(
    "mllama",
    "<|image|>",
    _mllama,
    vision={"image_size": 16, "intermediate_layers_indices": [0], "vision_output_dim": 64},
)
