"""Generate clients of other languages from openapi.portable.yaml, check them, and train with two of them.

    python tools/interop.py FOLDER

TypeScript (openapi-typescript, openapi-fetch) and Python (openapi-python-client) train and sample on `tinker serve`, without a
cast. Pydantic models (datamodel-code-generator) keep what an answer holds. Go, Java and Rust (openapi-generator) are generated,
and the central answer and long integers must be typed in them. Needs Node.js with npm, and a Java runtime.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinker.local import Settings, running_server

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "openapi.portable.yaml"
EXAMPLES = ROOT / "examples" / "interop"
#: In each language, what the answer of retrieve_future and a number of a request must be.
TYPED = {
    "go": {
        "api_futures.go": r"RetrieveFutureExecute\(.*\(\*FutureAnswer",
        "model_optim_step_request.go": r"SeqId NullableInt64",
    },
    "java": {"FuturesApi.java": r"public FutureAnswer retrieveFuture\(", "OptimStepRequest.java": r"private Long seqId"},
    "rust": {"futures_api.rs": r"-> Result<models::FutureAnswer", "optim_step_request.rs": r"pub seq_id: Option<Option<i64>>"},
}
ANSWER: dict[str, Any] = {"loss_fn_output_type": "x", "loss_fn_outputs": [], "metrics": {"loss:sum": 1.5}}


class Failed(Exception):
    """A client could not be generated, checked or used."""


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run a command and return what it printed; Failed with all of that when it does not succeed."""
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise Failed(f"{command[0]} is not installed")
    found = subprocess.run(
        [program, *command[1:]], cwd=folder, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    if found.returncode:
        raise Failed(f"{' '.join(command)}\n{found.stdout}{found.stderr}")
    return found.stdout


def train(folder: Path, *command: str) -> None:
    """Run a script that trains and samples against our server."""
    with running_server(Settings(api_key="tml-interop")) as url:
        printed = run(*command, folder=folder, TINKER_BASE_URL=url, TINKER_API_KEY="tml-interop")
    if not re.search(r"step 4: loss [\d.]+\n(.*\n)?sampled \d", printed):
        raise Failed(f"{' '.join(command)} printed {printed!r}")


def check_typescript(folder: Path) -> None:
    """Compile the script against generated types, and run it."""
    for name in ("package.json", "tsconfig.json", "train.ts"):
        shutil.copy(EXAMPLES / name, folder)
    run("npm", "install", "--no-audit", "--no-fund", folder=folder)
    run("npx", "openapi-typescript", str(DOCUMENT), "-o", "schema.d.ts", "--default-non-nullable", "false", folder=folder)
    run("npx", "tsc", "-p", ".", folder=folder)
    train(folder, "npx", "tsx", "train.ts")


def check_stock_python(folder: Path) -> None:
    """Check the script's types against the generated package, and run it."""
    shutil.copy(EXAMPLES / "train.py", folder)
    options = ("--output-path", "stock", "--meta", "none", "--overwrite", "--fail-on-warning")
    run("openapi-python-client", "generate", "--path", str(DOCUMENT), *options, folder=folder)
    run("mypy", "--strict", "--follow-imports", "silent", "train.py", folder=folder)
    train(folder, sys.executable, "train.py")


def check_pydantic(folder: Path) -> None:
    """Read an answer with the generated models: nothing of it may be lost."""
    command = ("datamodel-codegen", "--input", str(DOCUMENT), "--output", "answers.py", "--formatters", "builtin")
    run(*command, "--output-model-type", "pydantic_v2.BaseModel", folder=folder)
    specification = importlib.util.spec_from_file_location("answers", folder / "answers.py")
    assert specification is not None
    assert specification.loader is not None
    answers = importlib.util.module_from_spec(specification)
    sys.modules["answers"] = answers
    specification.loader.exec_module(answers)
    if (kept := answers.FutureAnswer.model_validate(ANSWER).model_dump()) != ANSWER:
        raise Failed(f"of {ANSWER} pydantic keeps {kept}")


def check_language(language: str) -> Callable[[Path], None]:
    """Return the check of a client that openapi-generator makes."""

    def check(folder: Path) -> None:
        options = ("-i", str(DOCUMENT), "-o", str(folder), "--skip-validate-spec")
        run("openapi-generator-cli", "generate", "-g", language, *options, folder=folder)
        for name, pattern in TYPED[language].items():
            (file,) = (path for path in folder.rglob(name) if "test" not in path.parts)
            if not re.search(pattern, file.read_text(encoding="utf-8")):
                raise Failed(f"{name} has no {pattern}")

    return check


CHECKS: dict[str, Callable[[Path], None]] = {
    "TypeScript": check_typescript,
    "stock Python": check_stock_python,
    "pydantic": check_pydantic,
    **{language.title(): check_language(language) for language in TYPED},
}


def main(place: Path) -> int:
    """Run every check in a folder of its own; return 1 when one fails."""
    failed = 0
    for name, check in CHECKS.items():
        folder = place / name.lower().replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            check(folder)
            print(f"{name}: ok", flush=True)
        except Failed as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
