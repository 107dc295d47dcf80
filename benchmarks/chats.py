"""Chats to examples: `tinker.data.examples_from_messages` beside TRL's own way, in turn, in one
process.

    python benchmarks/chats.py [--chats 1000] [--rounds 3] [--templates qwen2_5 qwen3 llama3]
        [--at-most 1]

Needs the extra ``local`` and `pip install --no-deps trl==1.16.0`, of which only the chat templates
are read. TRL's way is what its SFT trainer does with a chat: ``apply_chat_template`` with its
training template, which returns tokens and the mask of those that are learned. Ours is whole: from
messages to datums. The tokenizer joins newlines, as Qwen's. CPU of the process; a row is the median
of the rounds. The benchmark fails where ours takes more than ``--at-most`` times the CPU of TRL's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tinker

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from templates.tokenizers_made import make_tokenizer
from templates.wheel import FOR_TRAINING, TEMPLATES

_WORDS = [
    "four",
    "and",
    "is",
    "the",
    "name",
    "weather",
    "model",
    "answer",
    "helpful",
    "city",
    "in",
    "You",
    "What?",
    "Paris.\n\n",
]


def make_chats(
    tokenizer: Any, count: int, answers: int, tokens: int, seed: int = 0
) -> list[list[dict[str, str]]]:
    """Return chats with that many questions and answers, each chat of about as many tokens."""
    chooser = random.Random(seed)
    text = " ".join(chooser.choices(_WORDS, k=1000))
    words = 1000 * tokens // len(tokenizer.encode(text)) // (2 * answers)

    def write() -> str:
        return " ".join(chooser.choices(_WORDS, k=words))

    turn = ("user", "assistant")
    return [
        [{"role": role, "content": write()} for _ in range(answers) for role in turn]
        for _ in range(count)
    ]


def measure(work: Callable[[], int]) -> tuple[float, int]:
    """Return the CPU seconds of a call, and what it returned."""
    began = time.process_time()
    count = work()
    return time.process_time() - began, count


def compare(name: str, options: argparse.Namespace, answers: int) -> float:
    """Print a row, and return the ratio."""
    tokenizer = make_tokenizer("byte-level", name, TEMPLATES[name])
    how = {
        "chat_template": FOR_TRAINING[name],
        "return_dict": True,
        "return_assistant_tokens_mask": True,
    }
    times: list[tuple[float, float]] = []
    for seed in range(options.rounds + 1):  # new chats in each, since data has each of them once
        chats = make_chats(tokenizer, options.chats, answers, options.tokens, seed)
        ours = measure(
            lambda: sum(len(tinker.data.examples_from_messages(tokenizer, chat)) for chat in chats)  # noqa: B023
        )
        trl = measure(
            lambda: sum(
                len(tokenizer.apply_chat_template(chat, **how)["input_ids"])
                for chat in chats  # noqa: B023
            )
        )
        times.append((ours[0], trl[0]))
        examples, tokens = ours[1], trl[1]
    del times[0]  # of what is made once
    one, other = (statistics.median(column) for column in zip(*times, strict=True))
    length, each = tokens / options.chats, 1e3 / options.chats
    print(
        f"| {name}, {answers} | {length:,.0f} | {examples:,} | {one * each:.2f} / "
        f"{other * each:.2f} | {one / other:.2f} |"
    )
    return one / other


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chats", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=1000, help="of a chat, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--templates", nargs="+", default=["qwen2_5", "qwen3", "llama3"])
    parser.add_argument("--answers", nargs="+", type=int, default=[1, 4], help="in a chat")
    parser.add_argument("--at-most", type=float, default=1.0)
    options = parser.parse_args()
    print(
        "| template, answers | tokens of a chat | examples | CPU ms for a chat, ours / "
        "TRL | share |"
    )
    print("|---|--:|--:|--:|--:|")
    shares = [
        compare(name, options, answers) for name in options.templates for answers in options.answers
    ]
    return int(max(shares) > options.at_most)


if __name__ == "__main__":
    sys.exit(main())
