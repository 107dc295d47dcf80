"""A stub of transformers: writes each call as one line to the file named by ASKED and returns at
once.
"""

import json
import os
from pathlib import Path
from typing import Any


class AutoTokenizer:
    """A factory of tokenizers whose tokens are the code points of the text."""

    all_special_ids = (1,)

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> "AutoTokenizer":
        with Path(os.environ["ASKED"]).open("a") as asked:
            asked.write(json.dumps([name, options]) + "\n")
        return AutoTokenizer()

    def __len__(self) -> int:
        return 0x110000

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, tokens[skip_special_tokens:]))
