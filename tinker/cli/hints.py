"""Suggestions for unknown commands, options and keys of a file of options: what they are called here, or why there are none."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_SYNONYMS = {  # some are those of TRL's trainers
    **dict.fromkeys(("--lora-r", "--lora-rank"), "--rank"),
    **dict.fromkeys(("--model-name-or-path", "--base-model"), "--model"),
    **dict.fromkeys(("--reward-func", "--reward-funcs"), "--grpo"),
    **dict.fromkeys(("--max-completion-length", "--max-new-tokens"), "--max-tokens"),
    **dict.fromkeys(("--do-eval", "--eval-dataset"), "--eval-file"),
    **dict.fromkeys(("--eval-steps", "--eval-strategy"), "--eval-every"),
    **dict.fromkeys(("--save-steps", "--save-strategy"), "--save-every"),
    **dict.fromkeys(("push", "push-to-hub"), "push-hf"),
    **dict.fromkeys(("--batch", "--per-device-train-batch-size"), "--batch-size"),
    **dict.fromkeys(("complete", "generate"), "sample"),
    **dict.fromkeys(("describe", "get", "show"), "info"),
    **dict.fromkeys(("finetune", "fit", "sft"), "train"),
    **dict.fromkeys(("remove", "rm"), "delete"),
    "--checkpoint": "--from --model",
    "--dry-run": "--estimate",
    "--gradient-accumulation-steps": "--accumulate",
    "--lr-scheduler-type": "--schedule",
    "--hub-model-id": "--repo",
    "--max-grad-norm": "--grad-clip-norm",
    "--max-seq-length": "--max-length",
    "--save-total-limit": "--keep-last",
    "--num-generations": "--group-size",
    "--num-return-sequences": "--num-samples",
    "--num-train-epochs": "--epochs",
    **dict.fromkeys(("--local-dir", "--output-dir"), "--output"),
    "--resume-from-checkpoint": "--resume",
    "--steps": "--max-steps",
    "--temp": "--temperature",
    "--warmup-steps": "--warmup",
    "ls": "list",
}
EXPLAINED = {  # what neither a command nor an option of another name does
    **dict.fromkeys(
        ("--data", "--dataset", "--dataset-name", "--file", "--train-file"),
        "Name the JSONL file without an option: tinker train DATA.",
    ),
    **dict.fromkeys(
        ("--assistant-only-loss", "--completion-only-loss"),
        'It is not needed: only answers are learned, except of lines with "text" or "tokens".',
    ),
    **dict.fromkeys(
        ("--deepspeed", "--fsdp", "--gpus", "--num-gpus", "--num-processes", "--tensor-parallel-size"),
        "The GPUs are the server's: `tinker serve --replicas N` has a process on each, --fsdp splits layers over them, "
        "and --device-map spreads a model; CUDA_VISIBLE_DEVICES chooses the GPUs.",
    ),
    **dict.fromkeys(
        ("--lora-target-modules", "--target-modules"),
        "All linear layers get an adapter; so does the output layer, unless --no-train-unembed is given.",
    ),
    **dict.fromkeys(
        ("--output", "--output-dir"),
        "Checkpoints are on the server, under the --name; `tinker checkpoint download` copies them.",
    ),
    **dict.fromkeys(("--adam-beta1", "--adam-beta2", "--adam-epsilon"), "The optimizer has the defaults of AdamParams."),
    **dict.fromkeys(("--cliprange", "--epsilon"), "Nothing is clipped: the weights that sampled an answer learn it, once."),
    **dict.fromkeys(("--key", "--token"), "Pipe the key in, which keeps it out of the history: tinker auth login < FILE"),
    **dict.fromkeys(
        ("--report-to", "--wandb", "--wandb-project", "--run-name"),
        "Use --name for the run; --log FILE.jsonl writes each step to a file, for W&B and others.",
    ),
    **dict.fromkeys(
        ("--min-p", "--presence-penalty", "--frequency-penalty", "--repetition-penalty"),
        "It is a field of SamplingParams, in Python only.",
    ),
    **dict.fromkeys(("--hub-model-id", "--push-to-hub"), "Use `tinker checkpoint push-hf` afterwards."),
    **dict.fromkeys(("--quiet", "-q"), "Progress goes to the error stream: `2> FILE` keeps it off the screen."),
    **dict.fromkeys(("--top-p", "--top-k"), "GRPO samples from all tokens; --temperature is its only setting."),
    **dict.fromkeys(("eval", "evaluate"), "Use `tinker train --eval-file FILE`, or score what `tinker sample --file` prints."),
    **dict.fromkeys(("download", "export"), "Use `tinker checkpoint download`."),
    **dict.fromkeys(("push", "push-hf", "push-to-hub"), "Use `tinker checkpoint push-hf`."),
    **dict.fromkeys(("login", "logout"), "Use `tinker auth login` or `tinker auth logout`."),
    "--api-key": "Run `tinker auth login`, or set TINKER_API_KEY.",
    "--beta": "Only `tinker train --dpo` has it.",
    "--config": "Only `tinker train` reads options from a file.",
    "--dataset-text-field": 'The key of a plain text is "text": rename it in the file.',
    "--do-sample": "--temperature above 0 samples, and --temperature 0 takes the likeliest tokens.",
    "--load-best-model-at-end": "The last weights are the result; --save-every keeps earlier ones, and --eval-every compares.",
    "--lora-alpha": "It is an argument of create_lora_training_client, and 32 here.",
    "--packing": "It is not needed: each example is a sequence of its own, without padding.",
    "--logging-steps": "Every step is shown.",
    "--loss-type": "The loss is a sum over tokens; for pairs of answers there is --dpo.",
    "--max-prompt-length": "Prompts are not truncated: shorten them in the file.",
    "--num-iterations": "The optimizer takes one step on the answers of a step.",
    "--optim": "The optimizer is always Adam; --weight-decay makes it AdamW.",
    "--prompt": 'Write the prompt without an option: tinker sample "2 + 2 ="',
    "--scale-rewards": "GRPO always divides the advantages by the standard deviation of the group.",
    "--use-vllm": "The server samples with vLLM: `tinker serve --sampler vllm`.",
    "--warmup-ratio": "--warmup is a number of steps.",
    "--verbose": "Every step is shown; --debug shows the traceback of an error.",
    "--use-peft": "It is not needed: every run trains a LoRA adapter.",
    "dpo": "Use `tinker train --dpo`.",
    "env": "Use `tinker doctor`, which lists the versions.",
    "grpo": "Use `tinker train --grpo REWARD.py`.",
    "launch": "A script of yours is an ordinary program: `python SCRIPT.py`.",
    "merge": "Download the adapter with `tinker checkpoint download`, and merge it with PEFT.",
    "whoami": "Use `tinker auth whoami`.",
    "search": "`tinker run info NAME` shows a run, and `tinker checkpoint search` finds checkpoints.",
    "upload": "Use `tinker checkpoint upload`.",
}
EXTRA = {  # what a command that has this option says of an argument too many
    "--eval-file": "DATA is one file: `cat FILES > all.jsonl` joins several, and --eval-file FILE names held-out examples.",
    "--repo": "To name the repository: --repo {}",
    "--run-id": "To name a run: --run-id {}",
    "--columns": "To show one run: tinker run info {}",
    "--model": "To name a model: --model {}",
}


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint about an unknown command or option: what is meant by it among the known ones. Empty without an idea."""
    plain = name.replace("_", "-")  # TRL spells its options with underscores
    close = [one for one in _SYNONYMS.get(plain, "").split() if one in known]
    if not close and plain in EXPLAINED:
        return EXPLAINED[plain]
    from tinker_records import ABSENT, LIKENESS

    if not close and (why := ABSENT.get(plain.strip("-").replace("-", "_"))):
        return f"{why[0].upper()}{why[1:]}."
    close = close or difflib.get_close_matches(plain, known, 2, LIKENESS if plain.startswith("-") else 0.6)
    return f"Did you mean {' or '.join(close)}?" if close else ""
