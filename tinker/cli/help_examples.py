"""The examples that the help of each command ends with, by where the command is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "auth:login": (
        "tinker auth login",
        "echo $KEY | tinker auth login",
    ),
    "auth:logout": ("tinker auth logout",),
    "auth:status": (
        "tinker auth status",
        "tinker -f json auth status",
    ),
    "auth:whoami": ("tinker auth whoami",),
    "billing:checkpoint_storage": (
        "tinker billing checkpoint-storage",
        "tinker billing checkpoint-storage --csv storage.csv",
    ),
    "billing:usage": ("tinker billing usage 2026-01-01T00:00Z 2026-01-08T00:00Z --csv usage.csv",),
    "chat:chat": (
        'tinker chat --model Qwen/Qwen3-8B --system "Answer in one sentence."',
        "tinker chat --model tinker://RUN/sampler_weights/final",
        'echo "What is LoRA?" | tinker chat',
    ),
    "checkpoint.change:publish": ("tinker checkpoint publish tinker://RUN/weights/final",),
    "checkpoint.change:set_ttl": ("tinker checkpoint set-ttl tinker://RUN/weights/final --ttl 86400",),
    "checkpoint.change:unpublish": ("tinker checkpoint unpublish tinker://RUN/weights/final",),
    "checkpoint.create:create": ("tinker checkpoint create --model Qwen/Qwen3-8B --name start --sampler",),
    "checkpoint.delete:delete": (
        "tinker checkpoint delete tinker://RUN/weights/final",
        "tinker checkpoint delete --run-id RUN --before 2026-01-31T08:00Z",
    ),
    "checkpoint.files:download": ("tinker checkpoint download tinker://RUN/sampler_weights/final --output out",),
    "checkpoint.files:push_hf": ("tinker checkpoint push-hf tinker://RUN/sampler_weights/final --repo me/model",),
    "checkpoint.search:search": ("tinker checkpoint search --type training --metadata step=100",),
    "checkpoint.show:info": ("tinker checkpoint info tinker://RUN/weights/final",),
    "checkpoint.show:list_checkpoints": ("tinker checkpoint list --run-id RUN",),
    "checkpoint.upload:upload": ("tinker checkpoint upload ./my-adapter --base-model Qwen/Qwen3-8B",),
    "completion:completion": (
        "tinker completion --install",
        "tinker completion zsh >> ~/.zshrc",
    ),
    "conformance:conformance": (
        "tinker conformance --base-url http://localhost:8000",
        "tinker conformance --base-url http://localhost:8000 --json report.json",
    ),
    "doctor:doctor": (
        "tinker doctor",
        "tinker --base-url http://localhost:8000 doctor --operations",
    ),
    "main": ("tinker --base-url local:// train examples.jsonl", 'tinker sample "Once upon a time"', "tinker -f json run list"),
    "model:list_models": ("tinker model list",),
    "run:info": ("tinker run info RUN",),
    "run:list_runs": ("tinker run list --limit 5 --columns id,model,updated",),
    "run_curves:compare": (
        "tinker run compare rank8.jsonl rank32.jsonl",
        "tinker run compare *.jsonl --metric reward --plot rewards.svg",
        "tinker --base-url http://localhost:8000 run compare RUN_ID ANOTHER_ID",
    ),
    "run_curves:watch": (
        "tinker run watch log.jsonl",
        "tinker run watch metrics.jsonl --metric env/all/reward/total",
        "tinker --base-url http://localhost:8000 run watch RUN_ID --once",
    ),
    "run_usage:usage": ("tinker run usage RUN --prices prices.toml",),
    "sample:sample": (
        'tinker sample "Once upon a time" --num-samples 4 --temperature 0.7',
        'tinker sample --model tinker://RUN/sampler_weights/final "2 + 2 ="',
        "tinker sample --file prompts.jsonl --output answers.jsonl",
    ),
    "serve:serve": (
        "tinker serve",
        "tinker serve --model Qwen/Qwen3-0.6B --port 8001",
        "tinker serve --engine toy --port 0",
    ),
    "session:export_trace": ("tinker session export-trace SESSION --output trace.pftrace",),
    "train:train": (
        "tinker train examples.jsonl --epochs 2 --save-every 50",
        "tinker train examples.jsonl --eval-file held_out.jsonl --plot loss.svg",
        "tinker train prompts.jsonl --grpo reward.py --group-size 16",
    ),
    "version:version": ("tinker version",),
}


def example_text(home: str) -> str | None:
    """Return the examples of the command at a place, ``module:name``, as the end of its help; None where there are none."""
    lines = EXAMPLES.get(home.removeprefix("tinker.cli.commands."))
    return None if lines is None else "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
