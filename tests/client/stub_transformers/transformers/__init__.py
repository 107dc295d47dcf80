"""In the place of transformers: notes what it is asked for, one line each in the file that ASKED names, and waits for nobody."""

import json
import os
from pathlib import Path
from typing import Any


class AutoTokenizer:
    """Makes tokenizers whose tokens are the code points of the text."""

    @staticmethod
    def from_pretrained(name: str, **options: Any) -> "AutoTokenizer":
        with Path(os.environ["ASKED"]).open("a") as asked:
            asked.write(json.dumps([name, options]) + "\n")
        return AutoTokenizer()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [ord(letter) for letter in text]

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, tokens[skip_special_tokens:]))
