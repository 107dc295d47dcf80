"""What a model shows when it is loaded: that it reads forwards only, that samples of it are those
of whole passes, and that images are read as it reads them.

Its first layers are enough for that, as many as there are kinds of layers; they share their weights
with the model.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache

from tinker.local.engines.arrays import start_work
from tinker.local.engines.protocol import Continuation, ImageReader, PlacedImage, SampleJob, log
from tinker.local.engines.torch import images
from tinker.local.engines.torch.images import ImageRow, ImageStates, TorchImages, UnreadImages
from tinker.local.engines.torch.lora import Mixer, copy_module, prefix_of_decoder
from tinker.local.engines.torch.passes import SplitModel
from tinker.local.engines.torch.sampling import Parts, Prefixes, TorchBatch, has_known_rows

LEAST_LAYERS = 2
PROBE = 8  # tokens
LIMIT = 512
# Tokens of a prompt, and of its sample; the last one joins as the first one ends, and goes on from
# what is kept of it.
JOBS = ((40, 2), (35, 5), (44, 3))
# how far numbers may be apart, of the largest logit: in float32, and in half precision
EXACT, ROUNDED = 1e-3, 0.02


@attrs.frozen
class Proof:
    """What a loaded model can do: keep several rows in a cache, continue from kept states, be
    sampled (``fault``: why not).
    """

    has_rows: bool = True
    keeps_prefixes: bool = False
    fault: str | None = None


@torch.no_grad()
def prove(model: Any) -> Proof:
    """Try a model. Raises ValueError, in one sentence, for one that cannot be trained here."""
    whole = copy_module(model)
    # not every model can be shortened: where something fails, the whole one decides
    with suppress(Exception):
        found = _prove(shorten(whole))
        if found.keeps_prefixes or not (found.has_rows or found.fault):
            return found
    return _prove(whole)


def _prove(model: Any) -> Proof:
    split, refused = SplitModel(model), f"{type(model).__name__} is not supported"
    tokens = torch.arange(PROBE, device=model.device).repeat(2, 1)
    tokens[1, -1] = PROBE
    try:
        states = split.run(input_ids=tokens, use_cache=False).states.float()
    except Exception as error:
        raise ValueError(
            f"{refused}: it does not compute text alone ({_first_line(error)})"
        ) from error
    if not states.isfinite().all():
        reason = (
            "its results are not finite "
            f"in {str(model.dtype).removeprefix('torch.')}; choose another dtype"
        )
        raise ValueError(f"{refused}: {find_infinity(model) or reason}")
    if _is_apart(model, states[0, :-1], states[1, :-1]):
        raise ValueError(
            f"{refused}: it is not a causal model: each of its tokens depends on those after it"
        )
    try:
        cache = split.run(input_ids=tokens, use_cache=True).cache
    except Exception as error:  # noqa: BLE001 - whatever an unknown model does
        return Proof(fault=f"it computes no cache ({_first_line(error)})")
    fault: str | None = "it keeps nothing of the tokens that it was given"
    shared = [Proof(keeps_prefixes=True), Proof()] if has_known_rows(cache) else []
    # how samples may be drawn, the fastest way first
    for way in [] if cache is None else [*shared, Proof(has_rows=False)]:
        if (fault := _find_fault(model, split, way)) is None:
            return way
    return Proof(fault=fault)


def find_infinity(model: Any) -> str | None:
    """Return which weight of a model is not finite; None where all are."""
    broken = next(
        (name for name, one in model.named_parameters() if not one.isfinite().all()), None
    )
    return broken and f"the base model's weight {broken} has numbers that are NaN or infinite"


def shorten(model: Any) -> Any:
    """Return a model of the first layers, of each kind at least one; the model itself where that is
    not possible.
    """
    config = model.config.get_text_config(decoder=True)
    count = int(config.num_hidden_layers)
    kinds = getattr(config, "layer_types", None) or [None] * count
    lists = (
        (name, one) for name, one in model.named_modules() if isinstance(one, torch.nn.ModuleList)
    )
    stacks = {
        name: one
        for name, one in lists
        if len(one) == count and name.startswith(prefix_of_decoder(model))
    }
    first: dict[object, int] = {}
    for name, layers in stacks.items():
        for index, layer in enumerate(layers):
            form = tuple((part, type(module)) for part, module in layer.named_modules())
            first.setdefault((name, form, kinds[index]), index)
    kept = max([LEAST_LAYERS, *(index + 1 for index in first.values())])
    if not first or kept >= count or hasattr(config, "num_kv_shared_layers"):
        return model
    short = copy_module(model)
    for name in stacks:
        parent, _, leaf = name.rpartition(".")
        setattr(short.get_submodule(parent), leaf, short.get_submodule(name)[:kept])
    settings = short.config.get_text_config(decoder=True)
    for name, value in list(vars(settings).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(settings, name, value[:kept])
    settings.num_hidden_layers = kept
    return short


def _is_apart(model: Any, first: torch.Tensor, second: torch.Tensor, size: float = 0.0) -> bool:
    """Return whether numbers differ by more than rounding explains."""
    unit = EXACT if model.dtype == torch.float32 else ROUNDED
    return not bool((first - second).abs().max() <= unit * max(size, float(first.abs().max())))


def _find_fault(model: Any, split: SplitModel, way: Proof) -> str | None:
    """Return why samples that join and end beside each other are not what whole passes say; None
    where they are.
    """
    try:
        parts = Parts(
            model,
            split,
            Mixer(model, []),
            Prefixes(),
            lambda job: start_work(job, frozenset(), lambda tokens: ""),
            way.has_rows,
            way.keeps_prefixes,
        )
        for prompt, drawn in _sample(parts):
            tokens = torch.tensor([[*range(prompt), *drawn.tokens]], device=model.device)
            logits = split.logits(split.run(input_ids=tokens, use_cache=False).states)[
                0, prompt - 1 : -1
            ]
            expected = logits.log_softmax(dim=-1).gather(1, tokens[0, prompt:, None])[:, 0]
            if _is_apart(
                model,
                expected,
                torch.from_numpy(drawn.logprobs).to(expected),
                float(logits.abs().max()),
            ):
                return "its log-probabilities with a cache are not those without one"
    except Exception as error:  # noqa: BLE001 - whatever an unknown model does
        return f"a sample failed ({_first_line(error)})"
    return None


def _sample(parts: Parts) -> list[tuple[int, Continuation]]:
    """Sample greedily; return the length of each prompt, which counts up, and what is drawn."""
    batch, found = TorchBatch(parts, DynamicCache(config=parts.config), LIMIT), dict[object, Any]()
    for number, (prompt, count) in enumerate(JOBS):
        job = SampleJob(
            tokens=np.arange(prompt, dtype=np.int32),
            weights=None,
            max_tokens=count,
            temperature=0,
            stop=[],
        )
        batch.add(number, job)
        while number and number - 1 not in found:
            found |= dict(batch.step())
    while len(found) < len(JOBS):
        found |= dict(batch.step())
    for outcome in found.values():
        if isinstance(outcome, Exception):
            raise outcome
    return [(prompt, found[number].sequences[0]) for number, (prompt, _) in enumerate(JOBS)]


# rows, columns and colors; several tiles in a row, where a processor makes tiles
PICTURE = (32, 128, 3)
_IMAGE_CLASSES: Any = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def find_reader(model: Any, source: str, longest: int) -> ImageReader | None:
    """Return what reads the images of a model, or refuses them with the reason; None for a model
    that takes none.

    Its images are prepared by the processor of images in its folder, or by that of text and images,
    whichever shows, on a picture, that the language model computes with what is read here what the
    whole model computes.
    """
    if type(model.config) not in _IMAGE_CLASSES:
        return None
    reasons = list[str]()
    for kind in (transformers.AutoImageProcessor, transformers.AutoProcessor):
        opener: Any = kind
        try:
            processor = opener.from_pretrained(source, trust_remote_code=False)
        except (OSError, ValueError):
            reasons = reasons or [
                "its folder has no preprocessor_config.json that says how images are prepared"
            ]
            break
        except ImportError as error:
            reasons.append(_first_line(error).partition(". ")[0])
            continue
        if hasattr(processor, "tokenizer") or hasattr(processor, "merge_size"):
            reader = TorchImages(model, processor, longest)
            if (fault := _find_image_fault(model, reader)) is None:
                return reader
            reasons.append(fault)
    reason = (
        "; ".join(dict.fromkeys(reasons))
        or "its folder has no processor that writes the tokens of an image"
    )
    log.warning("%s takes text only: %s", source, reason)
    return UnreadImages(reason)


def _find_image_fault(model: Any, reader: TorchImages) -> str | None:
    """Return why the images that are read so are not what the model sees; None where they are."""
    whole = copy_module(model)
    try:
        with suppress(Exception):  # as in prove()
            return _compare_image(shorten(whole), reader)
        return _compare_image(whole, reader)
    except Exception as error:  # noqa: BLE001 - whatever an unknown processor or model does
        return _first_line(error)


@torch.no_grad()
def _compare_image(model: Any, reader: TorchImages) -> str | None:
    """Compare the whole model, on an image between text, with its language model that is given what
    is read of the image.
    """
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, PICTURE, dtype=np.uint8)
    inputs, given = reader.prepare(Image.fromarray(noise)), dict[str, Any]()
    placed = PlacedImage(start=PROBE, image=(image := reader.compute(inputs, b"")))
    edges = {
        "input_ids": torch.arange(PROBE),
        "attention_mask": torch.ones(PROBE, dtype=torch.long),
    }
    for name, one in inputs.items():
        if name in edges or name.endswith("type_ids"):
            edge = edges.get(name, torch.zeros(PROBE, dtype=torch.long)).to(one)[None]
            inputs[name] = torch.cat([edge, one, edge], dim=1)

    def note(module: torch.nn.Module, arguments: object, options: dict[str, Any]) -> None:
        given.update(options)

    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    expected = model(**inputs, use_cache=False).logits.float()
    hook.remove()
    tokens, positions = inputs["input_ids"], images.find_positions([placed], expected.shape[1])
    if (images.read_positions(given) != positions[-len(image.positions) :]).any():
        return "the positions of its tokens after an image are none that this server knows"
    options = (
        {}
        if images.are_in_line([placed])
        else {"position_ids": torch.from_numpy(positions)[:, None].to(tokens)}
    )
    split = SplitModel(model)
    states = ImageStates.collect([ImageRow([placed], 0)], slice(0, tokens.shape[1]), tokens.device)
    logits = split.logits(split.run(states, input_ids=tokens, use_cache=False, **options).states)
    if _is_apart(model, expected, logits):
        return "it does not read images forwards only: their tokens may see those after them"
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
