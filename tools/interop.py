"""Generate clients of other languages from openapi.portable.yaml, compile them, and train with five
of them.

    python tools/interop.py FOLDER

TypeScript (openapi-typescript, openapi-fetch), Python (openapi-python-client), Java, Go and Rust
(openapi-generator) train and sample on `tinker serve`, without a cast; Rust where cargo can fetch
crates. Pydantic models (datamodel-code-generator) keep what an answer holds. Needs Node.js with
npm, a Java compiler, Go and cargo, and says which of them is missing.
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
#: What the clients of openapi-generator import from elsewhere and only mark or check values with,
#: in an empty form.
EMPTY = {
    "src/main/java/javax/annotation/Generated.java": "package javax.annotation;\n"
    "public @interface Generated { String[] value(); String date(); String comments(); }\n",
    "validator/go.mod": "module gopkg.in/validator.v2\n",
    "validator/validator.go": (
        "package validator\n\nfunc Validate(interface{}) error { return nil }\n"
    ),
}
ANSWER: dict[str, Any] = {
    "loss_fn_output_type": "x",
    "loss_fn_outputs": [],
    "metrics": {"loss:sum": 1.5},
}


class Failed(Exception):
    """A client could not be generated, checked or used."""


class Missing(Exception):
    """The machine lacks what a check needs."""


def run(*command: str, folder: Path, **environment: str) -> str:
    """Run a command and return what it printed; Failed with all of that when it
    does not succeed.
    """
    program = shutil.which(
        command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if program is None:
        raise Missing(f"{command[0]} is not installed")
    found = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    if found.returncode:
        raise Failed(f"{' '.join(command[:6])}\n{(found.stdout + found.stderr)[-4000:]}")
    return found.stdout


def train(folder: Path, *command: str) -> None:
    """Run a script that trains and samples against our server."""
    with running_server(Settings(api_key="tml-interop")) as url:
        printed = run(*command, folder=folder, TINKER_BASE_URL=url, TINKER_API_KEY="tml-interop")
    if not re.search(r"step 4: loss [\d.]+\n(.*\n)?sampled \W?\d", printed):
        raise Failed(f"{' '.join(command)} printed {printed!r}")


def check_typescript(folder: Path) -> None:
    """Compile the script against generated types, and run it."""
    for name in ("package.json", "tsconfig.json", "train.ts"):
        shutil.copy(EXAMPLES / name, folder)
    run("npm", "install", "--no-audit", "--no-fund", folder=folder)
    run(
        "npx",
        "openapi-typescript",
        str(DOCUMENT),
        "-o",
        "schema.d.ts",
        "--default-non-nullable",
        "false",
        folder=folder,
    )
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
    command = (
        "datamodel-codegen",
        "--input",
        str(DOCUMENT),
        "--output",
        "answers.py",
        "--formatters",
        "builtin",
    )
    run(*command, "--output-model-type", "pydantic_v2.BaseModel", folder=folder)
    specification = importlib.util.spec_from_file_location("answers", folder / "answers.py")
    assert specification is not None
    assert specification.loader is not None
    answers = importlib.util.module_from_spec(specification)
    sys.modules["answers"] = answers
    specification.loader.exec_module(answers)
    if (
        kept := answers.FutureAnswer.model_validate(ANSWER).model_dump(exclude_unset=True)
    ) != ANSWER:
        raise Failed(f"of {ANSWER} pydantic keeps {kept}")


def generate(language: str, folder: Path, *options: str) -> None:
    """Let openapi-generator make a client, and put beside it what it imports from elsewhere."""
    command = (
        "openapi-generator-cli",
        "generate",
        "-g",
        language,
        "-i",
        str(DOCUMENT),
        "-o",
        str(folder),
    )
    run(*command, "--skip-validate-spec", *options, folder=folder)
    for name, text in EMPTY.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def check_java(folder: Path) -> None:
    """Compile the client and the script against the generator's own Jackson, and run it."""
    generate("java", folder, "--library", "native", "-p", "openApiNullable=false")
    shutil.copy(EXAMPLES / "Train.java", folder / "src/main/java")
    specification = importlib.util.find_spec("openapi_generator_cli")
    assert specification is not None
    assert specification.submodule_search_locations is not None
    jar = Path(specification.submodule_search_locations[0], "openapi-generator.jar")
    sources = [str(path) for path in (folder / "src/main/java").rglob("*.java")]
    run("javac", "-proc:none", "-cp", str(jar), "-d", "classes", *sources, folder=folder)
    train(folder, "java", "-cp", f"classes{os.pathsep}{jar}", "Train")


def check_go(folder: Path) -> None:
    """Compile the client and the script, and run it."""
    generate("go", folder, "-p", "packageName=api")
    (folder / "train").mkdir()
    shutil.copy(EXAMPLES / "train.go", folder / "train")
    run("go", "mod", "edit", "-replace", "gopkg.in/validator.v2=./validator", folder=folder)
    run("go", "vet", "./train", folder=folder)
    train(folder, "go", "run", "./train")


def check_rust(folder: Path) -> None:
    """Compile the client and the script where its crates can be fetched, and run it."""
    generate("rust", folder, "-p", "supportAsync=false")
    (folder / "examples").mkdir()
    shutil.copy(EXAMPLES / "train.rs", folder / "examples")
    try:
        run("cargo", "fetch", folder=folder, CARGO_NET_RETRY="0")
    except Failed:
        raise Missing("generated, not compiled: cargo cannot fetch its crates") from None
    train(folder, "cargo", "run", "--example", "train")


CHECKS: dict[str, Callable[[Path], None]] = {
    "TypeScript": check_typescript,
    "stock Python": check_stock_python,
    "pydantic": check_pydantic,
    "Java": check_java,
    "Go": check_go,
    "Rust": check_rust,
}


def main(place: Path) -> int:
    """Run every check in a folder of its own; return 1 when one fails, not for what the machine
    lacks.
    """
    failed = 0
    for name, check in CHECKS.items():
        folder = place / name.lower().replace(" ", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            check(folder)
            print(f"{name}: ok", flush=True)
        except Missing as error:
            print(f"{name}: {error}", flush=True)
        except Failed as error:
            failed += 1
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
