# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""The model families in common use, each as a small random model, compared with plain transformers
and PEFT.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import torch
import transformers
from safetensors.torch import load_file, save_file
from support.compared import SPEC, Compared, load_in_peft, write_kind
from support.engine_inputs import compute, finish, make_job, make_text, make_tokens
from support.families import EXPERTS, FAMILIES, SIZES, Family, write_family
from support.seeing_kinds import READ
from support.small_configs import ONE_ROW, TOWERS, Kind, find_class
from support.tallied import open_batch
from support.tiny_models import sample_jobs
from support.tolerances import FLOAT64, assert_near, near, terms_of_pass
from transformers.cache_utils import DynamicCache

from tinker import checkpoints
from tinker.local.engines import open_engine
from tinker.local.engines.arrays import LINEAR, STEPS, orthogonal_direction
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    SampleJob,
    TrainingExample,
)
from tinker.local.engines.torch import TorchEngine, sampling
from tinker.local.engines.torch.engine import check_kind
from tinker.local.engines.torch.images import UnreadImages
from tinker.local.engines.torch.lora import LoraWeights, TorchTargets
from tinker.local.engines.torch.proof import shorten
from tinker.local.engines.torch.sampling import Prefixes, has_states

PAGE = Path(__file__).parents[2] / "docs" / "local-server.md"
BY_NAME = {family.name: family for family in FAMILIES}
BY_TYPE = {kind.model_type: kind for kind in (*TOWERS, *ONE_ROW)}
GEMMA_3 = Kind("gemma3", "Gemma 3 with images")
# how far the iteration of Dimuon raises the smallest part of a matrix, and what is rounded off
RAISED = LINEAR**STEPS


@attrs.frozen(eq=False)
class Trained:
    """A family's model beside PEFT's, its adapter, and one with other random weights."""

    family: Family
    directory: Path
    compared: Compared
    adapter: LoraWeights
    other: LoraWeights

    @property
    def engine(self) -> TorchEngine:
        return self.compared.engine

    def sample(self, *jobs: SampleJob) -> tuple[list[Any], int]:
        """Sample jobs together. Returns the first sequence of each, and how many tokens were
        computed.
        """
        batch = open_batch(self.engine, 4000)
        for number, one in enumerate(jobs):
            batch.add(number, one)
        done = finish(batch, len(jobs))
        return [done[number].sequences[0] for number in range(len(jobs))], batch.tally.real


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Trained]:
    """One family after the other."""
    if not hasattr(transformers, request.param.model):
        pytest.skip(f"transformers {transformers.__version__} has no {request.param.model}")
    folder = tmp_path_factory.mktemp("family")
    directory = write_family(request.param, folder / "model")
    compared = Compared.open(directory, folder, layers=2, times=1)
    compared.engine.create_adapter("b", AdapterSpec(rank=2, seed=2, train_unembed=False))
    adapter, other = (compared.engine.snapshot(name) for name in "ab")
    assert isinstance(adapter, LoraWeights)
    assert isinstance(other, LoraWeights)
    with torch.no_grad():
        for index, tensor in enumerate(other.tensors.values()):
            tensor.normal_(0, 0.1, generator=torch.Generator().manual_seed(index))
    yield Trained(request.param, directory, compared, adapter, other)
    compared.engine.drop_adapter("a")


@pytest.mark.numeric
def test_training_equals_peft(trained: Trained) -> None:
    """Log-probabilities of rows of unlike length, and the gradient of every matrix, are those of
    PEFT row by row.
    """
    trained.compared.assert_trains()


def test_samples_equal_passes_without_a_cache(trained: Trained) -> None:
    """Rows of different lengths and adapters that are batched draw the same as alone and as
    ``generate``, with PEFT's log-probabilities, those of prompts too.
    """
    trained.compared.assert_samples(trained.other)


def assert_equal(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert_near(one.logprobs, other.logprobs, terms_of_pass(60))


@pytest.mark.numeric
def test_a_merged_model_equals_peft(trained: Trained, tmp_path: Path) -> None:
    """A merged model has the log-probabilities that the adapter has in PEFT, also where the adapted
    head was tied.
    """
    checkpoints.merge(trained.directory.parent, trained.directory, tmp_path)
    kind = getattr(transformers, trained.family.model)
    merged, loading = kind.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(loading.values()), loading
    tokens = make_tokens(14)
    logits = merged(input_ids=torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
    expected = trained.compared.table(tokens)
    assert_near(torch.log_softmax(logits, dim=-1), expected, terms_of_pass(14))


def test_adapters_share_passes(trained: Trained) -> None:
    """Two adapters over the base model are computed in one pass for each token, experts and all."""
    batch = open_batch(trained.engine, 1000)
    for number, weights in enumerate((trained.adapter, trained.other)):
        batch.add(number, make_job(6, weights=weights, max_tokens=2))
    assert [ticket for _ in range(2) for ticket, _ in batch.step()] == [0, 1]
    assert (batch.tally.passes, trained.engine._parts.is_apart) == (2, False)


def test_a_prompt_comes_back(trained: Trained) -> None:
    """A repeated prompt costs only its last token, whatever its layers hold; the
    result is equal.
    """
    trained.engine._parts.prefixes = Prefixes()
    prompts = [make_job(length, weights=trained.adapter, max_tokens=1) for length in (40, 43)]
    first, computed = trained.sample(*prompts)
    again, computed_again = trained.sample(*prompts)
    assert_equal(again, first)
    assert (computed, computed_again) == (83, 2)


def test_the_next_turn_goes_on(trained: Trained) -> None:
    """The next turns of conversations of unlike lengths compute only what is new; they equal those
    that begin anew.
    """
    trained.engine._parts.prefixes = Prefixes()
    first, _ = trained.sample(
        *(make_job(length, weights=trained.adapter, max_tokens=5) for length in (40, 47))
    )
    turns = [
        make_job(
            0,
            weights=trained.adapter,
            max_tokens=5,
            tokens=np.concatenate([make_tokens(length), one.tokens, make_tokens(7)]),
        )
        for length, one in zip((40, 47), first, strict=True)
    ]
    second, computed = trained.sample(*turns)
    # the last token of the first turn, the new ones, and all drawn but the last
    assert computed == 2 * (1 + 7 + 4)
    trained.engine._parts.prefixes = Prefixes()
    assert_equal(second, [trained.sample(one)[0][0] for one in turns])


def test_a_long_prompt_goes_in_pieces(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is computed piece by piece gives what it gives at once."""
    trained.engine._parts.prefixes = Prefixes()
    jobs = [make_job(length, weights=trained.adapter, max_tokens=5) for length in (50, 50)]
    whole, _ = trained.sample(*jobs)
    trained.engine._parts.prefixes = Prefixes()
    monkeypatch.setattr(sampling, "PIECE_TOKENS", 32)
    assert_equal(trained.sample(*jobs)[0], whole)


def test_flags_choose_what_is_adapted(trained: Trained) -> None:
    """Experts are adapted with the MLP and not without it; token mixers, including linear
    attention, with attention.
    """
    names = {}
    for flag in ("train_attn", "train_mlp", "train_unembed"):
        chosen = {name: name == flag for name in ("train_attn", "train_mlp", "train_unembed")}
        names[flag] = {
            target.name for target in trained.engine._targets.choose(AdapterSpec(rank=1, **chosen))
        }
    assert names["train_unembed"] == {"lm_head"}
    mixers = r"layers\.\d\.(self_attn|linear_attn|conv|mamba|mixer)\."
    assert all(re.search(mixers, name) for name in names["train_attn"])
    assert not any(
        re.search(r"(self_attn|linear_attn|conv|mamba)\.|[qkvo]_proj|in_proj", name)
        for name in names["train_mlp"]
    )
    inside = trained.engine._model.get_decoder()
    linear = {
        f".{name}" for name, module in inside.named_modules() if isinstance(module, torch.nn.Linear)
    }
    adapted = tuple(names["train_attn"] | names["train_mlp"])
    left = {end for end in linear if not any(name.endswith(end) for name in adapted)}
    # PEFT refuses these
    assert all(re.fullmatch(r"\.layers\.\d\.(mamba|mixer)\.out_proj", end) for end in left)
    layers = re.findall(r"layers\.(\d)\.", " ".join(names["train_attn"] | names["train_mlp"]))
    assert len(set(layers)) == trained.engine._model.config.get_text_config().num_hidden_layers
    assert (
        any(name.endswith(".experts") for name in names["train_mlp"]) is trained.family.has_experts
    )
    stacks = [name for name in trained.adapter.tensors if ".experts." in name]
    assert len(stacks) == 4 * len(
        [name for name in names["train_mlp"] if name.endswith(".experts")]
    )


def test_a_checkpoint_from_before_dense_layers_were_adapted_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One without matrices for the dense and shared MLPs beside experts goes on with those it has,
    and the log says so.
    """
    engine = TorchEngine(write_family(BY_NAME["DeepSeek-V3"], tmp_path / "model"), device="cpu")
    engine.create_adapter("a", SPEC)
    for _ in range(2):
        compute(engine, "a", [make_text(make_tokens(10))])
        engine.optim_step("a", Adam(learning_rate=0.02))
    (tmp_path / "new").mkdir()
    engine.save("a", tmp_path, optimizer=True)
    old = re.compile(r"mlp\.(shared_experts\.)?(gate|up|down)_proj\.")
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        tensors = load_file(tmp_path / name)
        save_file(
            {key: one for key, one in tensors.items() if not old.search(key)}, tmp_path / name
        )
    with caplog.at_level(logging.WARNING, logger="tinker.local"):
        spec = engine.load("a", tmp_path, optimizer=True)
    assert (
        "older than adapters of dense and shared MLPs beside experts, and continues without them"
        in caplog.text
    )
    kept = load_file(tmp_path / "adapter_model.safetensors")
    compute(engine, "a", [make_text(make_tokens(10))])
    engine.optim_step("a", Adam(learning_rate=0.02))
    engine.save("a", tmp_path / "new", optimizer=True)
    caplog.clear()
    assert engine.load("b", tmp_path / "new", optimizer=True) == spec
    assert load_file(tmp_path / "new" / "adapter_model.safetensors").keys() == kept.keys()
    assert load_in_peft(type(engine._model).from_pretrained(tmp_path / "model"), tmp_path / "new")
    assert not caplog.messages


@pytest.mark.numeric
def test_a_dimuon_step_takes_each_expert_by_itself(tmp_path: Path) -> None:
    """The momentum of each expert's two matrices is orthogonalised separately, as in numpy one
    after the other.
    """
    engine = TorchEngine(write_family(BY_NAME["Qwen3-MoE"], tmp_path), device="cpu")
    engine.create_adapter("a", SPEC)
    compute(engine, "a", [make_text(make_tokens(21))])
    engine.optim_step("a", Adam(learning_rate=0.02))
    compute(engine, "a", [make_text(make_tokens(31))])
    own = engine._adapter("a")
    assert own.gradient is not None
    # in float64, because the iteration raises what float32 rounds off
    for tensor in own.weights.tensors.values():
        tensor.data = tensor.data.double()
    before = {name: tensor.detach().numpy().copy() for name, tensor in own.weights.tensors.items()}
    own.gradient = [part.double() for part in own.gradient]
    gradient = {
        name: part.numpy().copy()
        for name, part in zip(own.weights.tensors, own.gradient, strict=True)
    }
    engine.optim_step("a", Dimuon(learning_rate=0.01, beta1=0.5))
    after = engine._adapter("a").weights.tensors
    stacks = [name for name in before if ".experts" in name]
    assert len(stacks) == 4
    for name in stacks:
        for expert in range(4):
            # PEFT stacks the rows of A expert by expert, and joins the columns of B expert by
            # expert
            cells = (
                np.s_[4 * expert : 4 * expert + 4] if ".lora_A." in name else np.s_[:, expert::4]
            )
            step = (before[name] - after[name].detach().numpy())[cells]
            part = gradient[name][cells].astype(np.float64)
            expected = 0.01 * orthogonal_direction(part)
            assert_near(step, expected, step.size, RAISED * 0.01, FLOAT64, name=f"{name} {expert}")
            assert np.linalg.norm(step) == near(
                0.01 * 2.0 if part.any() else 0.0, step.size, 1.0, FLOAT64
            )


def test_the_page_has_this_table() -> None:
    """The page about the local server has the table of the families tested here, with their
    features.
    """
    lines = [
        (
            "| family | kind | trains | experts adapted | samples | reads images | adapters mixed "
            "| loads in PEFT |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = [
        (family.name, family.kind, "yes", "yes" if family.reads_images else "no", "yes")
        for family in FAMILIES
    ]
    read = {kind.model_type: "with torchvision" if kind.needs else "yes" for kind in READ}
    rows += [
        (kind.name, kind.form, "yes", read.get(kind.model_type, "no"), "yes")
        for kind in (GEMMA_3, *TOWERS)
    ]
    rows += [(kind.name, kind.form, "one row each", "no", "no") for kind in ONE_ROW]
    for name, form, samples, images, mixed in rows:
        experts = "yes" if "experts" in form else "has none"
        lines.append(
            f"| {name} | {form} | yes | {experts} | {samples} | {images} | {mixed} | yes |"
        )
    assert "\n".join(lines) in PAGE.read_text()


# Modules left unadapted, and unsupported models


@pytest.mark.parametrize(
    ("family", "left_out"),
    [
        ("Qwen3.5-MoE", "linear_attn.conv1d, mlp.gate"),
        # which PEFT never adapts, because fast kernels read it past its module
        ("Falcon-H1", "mamba.conv1d, mamba.out_proj"),
    ],
)
def test_weights_without_an_adapter_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, left_out: str
) -> None:
    """Routers, convolution kernels and what PEFT refuses are not adapted, and the log says so when
    the model is loaded.
    """
    directory = write_family(BY_NAME[family], tmp_path / "model")
    with caplog.at_level(logging.INFO, logger="tinker.local"):
        TorchEngine(directory, device="cpu")
    assert f"model: no adapter changes {left_out}" in caplog.messages


@pytest.mark.numeric
@pytest.mark.parametrize(
    "kind",
    [GEMMA_3, BY_TYPE["mistral3"], BY_TYPE["qwen2_5_omni"]],
    ids=lambda kind: kind.model_type,
)
def test_a_tower_stays_as_it_is(tmp_path: Path, kind: Kind) -> None:
    """A model that reads more than text has its language model trained on text, by the names of its
    checkpoint's class.

    Of a checkpoint with several models, that is the class of the one that writes. Images are
    refused.
    """
    compared = Compared.make(kind, tmp_path)
    targets = compared.engine._targets
    assert {target.name.split(".layers.")[0] for target in targets.all} == {
        "model.language_model",
        "lm_head",
    }
    assert re.search(r"vision_tower|visual|attn\.qkv|vision", " ".join(targets.left_out))
    assert isinstance(compared.engine.image_reader, UnreadImages | None)
    compared.assert_trains()
    compared.assert_samples()


def test_a_tower_inside_the_decoder_has_no_adapter() -> None:
    """Phi-4-multimodal keeps its towers beside the layers of its decoder: only the layers and the
    head are adapted.
    """
    config = Kind(
        "phi4_multimodal", options={"audio_config": {"nemo_conv_channels": 32}}
    ).make_config()
    with torch.device("meta"):
        targets = TorchTargets(find_class(config)(config))
    assert {target.name.split(".layers.")[0] for target in targets.all} == {"model", "lm_head"}
    assert all(re.match(r"model\.layers\.\d\.|lm_head$", target.name) for target in targets.all)
    assert any("audio_embed" in name for name in targets.left_out)


def test_experts_of_an_unknown_form_are_refused(tmp_path: Path) -> None:
    """Llama 4's experts have an unknown form: an adapter with the MLP is refused, one without can
    be trained.
    """
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
    options = {**experts, "attention_chunk_size": 64}
    family = Family("Llama 4", "", "Llama4TextConfig", "Llama4ForCausalLM", options)
    engine = TorchEngine(write_family(family, tmp_path), device="cpu")
    with pytest.raises(
        EngineError, match=r"experts of Llama4ForCausalLM cannot be adapted here .* train_mlp=False"
    ):
        engine.create_adapter("a", SPEC)
    engine.create_adapter("a", attrs.evolve(SPEC, train_mlp=False))
    compute(engine, "a", [make_text(make_tokens(6))])
    assert engine.optim_step("a", Adam())["grad_norm:mean"] > 0


def test_a_gate_is_a_router_beside_experts_only() -> None:
    """A linear module with the name of a router has an adapter, unless experts stand beside it."""
    with torch.device("meta"):
        dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
        dense.model.layers[0].mlp.gate = torch.nn.Linear(32, 48)
        routed = transformers.Llama4ForCausalLM(
            transformers.Llama4TextConfig(**SIZES, num_local_experts=2)
        )
    found = [{target.name for target in TorchTargets(model).all} for model in (dense, routed)]
    assert "model.layers.0.mlp.gate" in found[0]
    assert "model.layers.0.feed_forward.shared_expert.up_proj" in found[1]
    assert "model.layers.0.feed_forward.router" not in found[1]


def test_experts_are_named_in_brief_where_that_is_enough() -> None:
    """PEFT gets the ends of the names of all experts, and whole names of those of one layer."""
    family = BY_NAME["Qwen3-VL-MoE"]
    with torch.device("meta"):
        model = getattr(transformers, family.model)(
            getattr(transformers, family.config)(**family.settings)
        )
    targets = TorchTargets(model)
    assert targets.peft_config(SPEC, "m")["target_parameters"] == [
        "mlp.experts.down_proj",
        "mlp.experts.gate_up_proj",
    ]
    one = targets.peft_config(attrs.evolve(SPEC, target_modules=("1.mlp.experts",)), "m")[
        "target_parameters"
    ]
    assert one == [
        f"model.language_model.layers.1.mlp.experts.{name}"
        for name in ("gate_up_proj", "down_proj")
    ]


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (
            partial(write_kind, Kind("idefics")),
            "IdeficsForVisionText2Text is not supported: it does not compute text alone",
        ),
        (
            partial(write_family, Family("GPT-2", "dense", "GPT2Config", "GPT2LMHeadModel")),
            "GPT2LMHeadModel is not supported: LoRA needs linear modules, and there are none in its "
            "attention and MLP; Llama, ",
        ),
        (
            partial(write_family, Family("BERT", "", "BertConfig", "BertLMHeadModel")),
            "BertLMHeadModel is not supported: it is not a causal model: each of its tokens depends",
        ),
    ],
    ids=["needs images", "no linear modules", "reads backwards"],
)
def test_a_model_that_cannot_be_trained_is_refused(tmp_path: Path, write: Any, said: str) -> None:
    """A model that computes nothing without an image, has nothing to adapt, or sees the tokens that
    it should predict is refused when it is loaded, not when a run fails.
    """
    with pytest.raises(ValueError, match=said):
        TorchEngine(write(tmp_path), device="cpu")


@pytest.mark.parametrize("kind", ["clip", "florence2"])
def test_a_model_that_does_not_write_after_text_is_refused(tmp_path: Path, kind: str) -> None:
    """A model of images without a language model, or whose text is made by a decoder of its own, is
    refused in one sentence.
    """
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(
        ValueError, match=f"kind, {kind}, is not a causal language model in transformers"
    ) as caught:
        TorchEngine(tmp_path, device="cpu")
    assert "images" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, r"\(gptq\); give the model in bfloat16"),
        ({"bits": 4}, r"\(its quantization_config has no quant_method\); give"),
    ],
)
def test_a_quantized_model_is_refused(settings: dict[str, Any], said: str) -> None:
    """Before it is loaded, in one sentence with its method; that of gpt-oss is none, since
    transformers undoes it.
    """
    with pytest.raises(ValueError, match=rf"org/m is not supported: it is quantized {said}"):
        check_kind(transformers.Qwen3Config(quantization_config=settings), "org/m")
    check_kind(transformers.GptOssConfig(quantization_config={"quant_method": "mxfp4"}), "org/m")


def rewrite_weights(folder: Path, **changes: Any) -> None:
    weights = {
        name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if name not in changes
    }
    kept = {name: tensor for name, tensor in changes.items() if tensor is not None}
    save_file({**weights, **kept}, folder / "model.safetensors", {"format": "pt"})


def lack_weights(folder: Path) -> None:
    rewrite_weights(
        folder, **{"model.layers.1.mlp.up_proj.weight": None, "model.norm.weight": torch.ones(3)}
    )


def drop_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def need_code(folder: Path) -> None:
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "model_type": "own", "auto_map": names})
    )
    (folder / "own.py").write_text("raise SystemExit('the code was run')")


def keep_gguf_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model.gguf")


@pytest.mark.parametrize(
    ("family", "spoil", "fault"),
    [
        (
            "Qwen3",
            lack_weights,
            (
                r"lacks weights .*: model\.layers\.1\.mlp\.up_proj\.weight, model\.norm\.weight of "
                r"shape \[32\], not \[3\];"
            ),
        ),
        (
            "Qwen3",
            drop_tokenizer,
            r"model has no tokenizer that can be read: put tokenizer\.json there",
        ),
        (
            "Llama",
            drop_tokenizer,
            r"model has no tokenizer that can be read: put tokenizer\.json there",
        ),
        ("Llama", need_code, "model needs Python code of its own, which is never run here"),
        ("Llama", keep_gguf_only, "model has its weights as GGUF only, which is not read here"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused(
    tmp_path: Path, family: str, spoil: Any, fault: str
) -> None:
    """What is missing is named in one sentence, nothing is drawn at random in its place, no code of
    the folder is run.
    """
    folder = write_family(BY_NAME[family], tmp_path / "model")
    spoil(folder)
    with pytest.raises(ValueError, match=fault) as caught:
        open_engine("torch", str(folder))
    assert "\n" not in str(caught.value)


RECURRENT = {
    "lru_width": 32,
    "attention_window_size": 16,
    "block_types": ("recurrent", "attention"),
}


def test_a_model_whose_samples_are_wrong_trains_and_is_not_sampled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RecurrentGemma keeps its states in itself: prompts are scored, a sample is refused with the
    reason.
    """
    family = Family(
        "RecurrentGemma", "", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", RECURRENT
    )
    engine = TorchEngine(write_family(family, tmp_path / "model"), device="cpu")
    assert (
        "model trains and cannot be sampled: it keeps nothing of the tokens that it was given"
        in caplog.messages
    )
    engine.create_adapter("a", attrs.evolve(SPEC, train_mlp=False))
    compute(engine, "a", [make_text(make_tokens(10)), make_text(make_tokens(6))])
    assert engine.optim_step("a", Adam())["grad_norm:mean"] > 0
    assert (
        sample_jobs(engine, [make_job(9, weights=None, max_tokens=0, prompt_logprobs=True)])[
            0
        ].prompt_logprobs
        is not None
    )
    with pytest.raises(
        EngineError,
        match="model trains and scores, but cannot be sampled here: it keeps nothing of the tokens",
    ):
        sample_jobs(engine, [make_job(9, weights=None)])


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """One that every text meets is named when the model is loaded, that of a single token when the
    token is met.
    """
    folder = write_family(BY_NAME["Llama"], tmp_path)
    rows = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    rows[100] = torch.nan
    rewrite_weights(folder, **{"model.embed_tokens.weight": rows})
    engine = TorchEngine(folder, device="cpu")
    engine.create_adapter("a", SPEC)
    tokens = np.full(4, 100, np.int32)
    data = [TrainingExample(tokens=tokens, loss_inputs={"target_tokens": tokens.astype(np.int64)})]
    with pytest.raises(
        EngineError,
        match=r"the base model's weight model\.embed_tokens\.weight has numbers that are NaN",
    ):
        compute(engine, "a", data)
    with pytest.raises(
        EngineError,
        match="the base model's probabilities are not finite: its files have weights that are NaN",
    ):
        sample_jobs(engine, [make_job(4, weights=None, tokens=tokens)])
    broken = {"model.layers.1.mlp.up_proj.weight": torch.full((48, 32), torch.inf)}
    rewrite_weights(folder, **{"model.embed_tokens.weight": rows.nan_to_num(), **broken})
    with pytest.raises(
        ValueError,
        match=r"not supported: the base model's weight model\.layers\.1\.mlp\.up_proj\.weight has",
    ):
        TorchEngine(folder, device="cpu")


def test_what_peft_loses_has_no_adapter() -> None:
    """PEFT renames Laguna's shared experts when it reads a file, and drops them: they stay as they
    are, and are named.
    """
    sizes = {
        **SIZES,
        **EXPERTS,
        "mlp_layer_types": ["dense", "sparse"],
        "layer_types": ["full_attention"] * 2,
    }
    config = transformers.LagunaConfig(**sizes, shared_expert_intermediate_size=24)
    with torch.device("meta"):
        targets = TorchTargets(transformers.LagunaForCausalLM(config))
    assert "model.layers.0.mlp.up_proj" in {target.name for target in targets.all}
    assert not any("shared_experts" in target.name for target in targets.all)
    assert "model.layers.1.mlp.shared_experts.up_proj.weight" in targets.left_out


def test_a_long_model_is_tried_by_its_first_layers() -> None:
    """As many as there are kinds of them, which have its weights and no others; a short one is
    taken whole.
    """
    options = {**SIZES, **BY_NAME["Qwen3-Next"].options, "num_hidden_layers": 12}
    options["layer_types"] = (["linear_attention"] * 3 + ["full_attention"]) * 3
    with torch.device("meta"):
        model = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**options))
    short = shorten(model)
    assert (
        len(short.model.layers),
        short.config.num_hidden_layers,
        len(short.config.layer_types),
    ) == (4, 4, 4)
    assert (len(model.model.layers), model.config.num_hidden_layers) == (12, 12)
    assert {id(one) for one in short.parameters()} < {id(one) for one in model.parameters()}
    assert shorten(short) is short


@pytest.mark.numeric
def test_every_layer_may_have_a_window(tmp_path: Path) -> None:
    """A model all of whose layers see the last tokens only is sampled as PEFT does."""
    Compared.make(Kind("mistral"), tmp_path).assert_samples()


@pytest.mark.numeric
@pytest.mark.parametrize("name", ["deepseek_v32", "minimax"])
def test_rows_of_an_unknown_cache_are_drawn_one_by_one(tmp_path: Path, name: str) -> None:
    """A cache with layers or a class of its own holds one row, whose prompt is computed anew; all
    is as in PEFT and alone.
    """
    compared = Compared.make(BY_TYPE[name], tmp_path)
    compared.assert_trains()
    compared.assert_samples()
    batch = open_batch(compared.engine, 1000)
    for number, length in enumerate((40, 40, 41)):
        batch.add(number, make_job(length, weights=None, max_tokens=2, num_samples=2))
    assert [ticket for _ in range(4) for ticket, _ in batch.step()] == [0, 1, 2]
    # two prompts, the first of which two jobs share, and the second token of six rows
    assert batch.tally.passes == 2 + 6
    again = open_batch(compared.engine, 1000)
    again.add(0, make_job(40, weights=None, max_tokens=1))
    again.step()
    assert again.tally.real == 40


def test_a_choice_has_no_adapter() -> None:
    """Matrices of an index, which only choose tokens, and those that are multiplied in groups,
    which PEFT cannot do, have none.
    """
    config = BY_TYPE["deepseek_v4"].make_config()
    with torch.device("meta"):
        targets = TorchTargets(find_class(config)(config))
    names = {target.leaf for target in targets.all if target.kind == "attn"}
    assert names == {"q_a_proj", "q_b_proj", "kv_proj", "o_b_proj", "gate_proj"}
    assert not any(".indexer." in target.name for target in targets.all)
    assert any(name.endswith("o_a_proj.weight") for name in targets.left_out)


def test_layers_that_keep_a_state_are_known() -> None:
    """Prompts are padded only where every layer attends to columns: a layer with one state for all
    tokens would count padding.
    """
    for config, kept in ((transformers.LlamaConfig, False), (transformers.Qwen3NextConfig, True)):
        assert has_states(DynamicCache(config=config(num_hidden_layers=4))) == kept


def test_half_adapted_experts_are_refused(tmp_path: Path) -> None:
    """A file with the factors of one of the experts' parameters is refused, because PEFT names
    those of both alike.
    """
    engine = TorchEngine(write_family(BY_NAME["Qwen3-MoE"], tmp_path / "model"), device="cpu")
    engine.create_adapter("a", SPEC)
    for name in ("saved", "read", "half"):
        (tmp_path / name).mkdir()
    engine.save("a", tmp_path / "saved", optimizer=False)
    engine.import_adapter(tmp_path / "saved", SPEC, tmp_path / "read")
    ours, again = (
        load_file(tmp_path / name / "adapter_model.safetensors") for name in ("saved", "read")
    )
    assert ours.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in ours.items())
    kept = {name: tensor for name, tensor in ours.items() if "experts.base_layer" not in name}
    save_file(kept, tmp_path / "saved" / "adapter_model.safetensors")
    with pytest.raises(EngineError, match="experts one parameter is adapted and another is not"):
        engine.import_adapter(tmp_path / "saved", SPEC, tmp_path / "half")
