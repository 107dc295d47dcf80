"""Make the model that every server of the comparison loads: a Qwen3 of 2 layers over bytes, seeded,
untrained.

python tests/compat/servers/tiny_model.py DIRECTORY

Its tokenizer is that of the packaged model, so that 258 tokens are all there are. Qwen3, because it
is the family that each of the servers has; in float32, because nothing else is exact on a CPU.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from tinker.local.engines import PACKAGED_FOLDER

END_OF_TEXT, PAD, VOCABULARY = 256, 257, 258
SEED = 7


def write_model(home: Path, seed: int = SEED, **changes: Any) -> None:
    """Write weights, configuration and tokenizer into a folder, in the form of Hugging Face."""
    import torch
    import transformers

    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": False,
    }
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        bos_token_id=END_OF_TEXT,
        eos_token_id=END_OF_TEXT,
        pad_token_id=PAD,
        dtype="float32",
        **{**sizes, **changes},
    )
    model = transformers.Qwen3ForCausalLM(config).to(torch.float32)
    model.save_pretrained(home)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(PACKAGED_FOLDER / name, home / name)


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
