"""The pages of docs/: Python blocks run, commands checked, tables made of code fresh."""

from __future__ import annotations

import contextlib
import doctest
import json
import os
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from support.cases import for_each

from codegen import __main__ as codegen
from tinker import _tokenizers
from tinker._loop import loop_thread
from tinker.cli import main
from tinker.cli.training import Reward

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = {"coverage.md", "methods.md"}  # the session `generate` holds them to their sources
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
READERS: dict[str, Callable[[str], Any]] = {"json": json.loads, "toml": tomllib.loads}
SHOWS_OUTPUT = ("", "This prints:")
FENCES = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages() -> list[Path]:
    return sorted(path for path in DOCS.rglob("*.md") if path.name not in GENERATED)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in FENCES.findall(page.read_text()) if found == language]


def blocks_with_output(page: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the Python blocks of a page, each with the output shown below it, if any."""
    text = page.read_text()
    fences = list(FENCES.finditer(text))
    for fence, following in zip_longest(fences, fences[1:]):
        if fence[1] == "python":
            shown = (
                following
                and following[1] == "text"
                and text[fence.end() : following.start()].strip() in SHOWS_OUTPUT
            )
            yield fence[2], following[2] if shown else None


def pages_with(language: str) -> list[str]:
    return [str(page.relative_to(DOCS)) for page in pages() if blocks(page, language)]


@pytest.fixture(autouse=True)
def _no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("TINKER_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    # a page gives one a chat template, which other tests must not see
    monkeypatch.setattr(_tokenizers, "_loaded", {})


@pytest.mark.parametrize("name", ["../README.md", *pages_with("python")])
def test_python_blocks(
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The blocks of a page run in order, print what it shows below them, and lose no request."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for number, (block, shown) in enumerate(blocks_with_output(DOCS / name), start=1):
        capsys.readouterr()
        exec(compile(block, f"{name}, block {number}", "exec"), names)
        printed, check = capsys.readouterr().out, doctest.OutputChecker().check_output
        is_shown = shown is None or check(shown, printed, doctest.ELLIPSIS)
        assert is_shown, f"block {number}:\n{printed}"
    loop_thread().log_unfinished("when the page ended")
    assert [line for line in caplog.messages if "had not finished" in line] == []
    if name in CURVES:
        variable, picture = CURVES[name]
        check_picture(names[variable], picture)


CURVES = {"index.md": ("losses", "loss.svg"), "rl.md": ("mean_rewards", "reward.svg")}


def check_picture(values: list[float], name: str) -> None:
    """The picture of `docs/_scripts/pictures.py` shows a run that begins and ends as this one."""
    script = runpy.run_path(str(DOCS / "_scripts" / "pictures.py"))
    drawing = (script["PICTURES"] / name).read_text(encoding="utf-8")
    points = re.findall(r'points="([^"]*)"', drawing)[0].split()
    assert len(points) == len(values)
    for end in (0, -1):
        _, now = script["place"](values, max(values))[end]
        assert abs(now - float(points[end].partition(",")[2])) < 0.4 * script["HEIGHT"]


def test_every_picture_is_on_a_page_and_described() -> None:
    """Each drawing is shown with words for those who do not see it, and tells of no folder."""
    shown = {
        name: text
        for page in pages()
        for text, name in re.findall(r"!\[([^]]*)]\(pictures/([\w-]+\.svg)\)", page.read_text())
    }
    files = {file.name: file.read_text(encoding="utf-8") for file in (DOCS / "pictures").iterdir()}
    assert shown.keys() == files.keys()
    assert all(len(text.split()) > 3 for text in shown.values())
    for name, svg in files.items():
        assert "<title>" in svg, name
        assert not re.search(r"url\(http|/(tmp|home|root|work|Users)\b", svg), name


def test_fences_are_of_known_languages() -> None:
    """A block is run, checked or mere output; a language that no test looks at is refused."""
    known = {"python", "sh", "text", "toml", "yaml", "json", "nginx", "caddy"}
    for page in pages():
        found = {language for language, _ in FENCES.findall(page.read_text())}
        assert found <= known, f"{page.name}: {found}"


@for_each("kind, name", [(kind, name) for kind in READERS for name in pages_with(kind)])
def test_data(kind: str, name: str) -> None:
    """What a page shows as JSON or of a TOML file can be read."""
    for block in blocks(DOCS / name, kind):
        assert READERS[kind](block)


@for_each("name", pages_with("sh"))
def test_commands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of a page exists and takes these options, and so does what it sets or starts."""
    if not (tmp_path / "key.txt").exists():
        for name_of_reader in ("key.txt", "cert.pem", "key.pem", "chats.jsonl", "questions.jsonl"):
            (tmp_path / name_of_reader).touch()
        for file in ROOT.iterdir():
            (tmp_path / file.name).symlink_to(file)
    monkeypatch.chdir(tmp_path)
    for block in blocks(DOCS / name, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                check_variable(words.pop(0).partition("=")[0])
            if words:
                with contextlib.suppress(click.exceptions.Exit):  # --help prints and ends
                    COMMANDS[words[0]](words[1:])


def check_tinker(words: list[str]) -> None:
    """The command line is parsed to the end; nothing is run."""
    command: click.Command = main
    context = click.Context(main, info_name="tinker")
    while isinstance(command, click.Group):
        context = command.make_context(context.info_name, words, parent=context.parent and context)
        words = [*getattr(context, "_protected_args", ()), *context.args]
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        assert name is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    command.make_context(context.info_name, words, parent=context.parent)


def check_python(words: list[str]) -> None:
    if words[:3] == ["-m", "nox", "-s"]:
        check_nox(words[2:])
    elif words[:2] == ["-m", "codegen"]:
        check_codegen(words[2:])
    else:
        assert (ROOT / words[0]).is_file(), words[0]


def check_codegen(words: list[str]) -> None:
    """The command and each of its options are spelled in the sources of the generator."""
    assert words[0] in codegen.COMMANDS, words[0]
    sources = "".join(
        path.read_text()
        for path in (ROOT / "codegen").rglob("*.py")
        if words[0] in (path.stem, path.parent.name)
    )
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in sources, option


def check_generator(program: str, words: list[str]) -> None:
    """A generator for other languages, and its options, are those that the interop session uses."""
    source = (ROOT / "tools" / "interop.py").read_text()
    assert "openapi.portable.yaml" in words
    for word in (program, *(word for word in words if word.startswith("-"))):
        assert f'"{word}"' in source, word


def check_nox(words: list[str]) -> None:
    assert words[0] == "-s"
    folder, name = ("tests/compat", words[3]) if words[1] == "compat" else ("tests", words[1])
    in_table = name in tomllib.loads((ROOT / folder / "sessions.toml").read_text())
    assert in_table or f"\ndef {name}(" in (ROOT / "noxfile.py").read_text(), name


def check_pip(words: list[str]) -> None:
    """This client is installed from a checkout; its bare name is the official SDK."""
    if words[0] == "uninstall":
        assert words[1:] == ["-y", PROJECT["name"]]
        return
    assert words[0] == "install"
    words = [word for word in words if word != "--no-deps"]
    # some of its own dependencies
    if set(words[1:]) <= {re.split("[<>=]", one)[0] for one in PROJECT["dependencies"]}:
        return
    assert words[1] == "-c" or len(words) == 2
    name, _, extras = words[-1].rstrip("]").partition("[")
    assert name in (".", "tinker-cookbook") or words[-1] == PROJECT["name"]
    assert set(filter(None, extras.split(","))) <= PROJECT["optional-dependencies"].keys(), words


def check_openssl(words: list[str]) -> None:
    """The commands of this program are run by `test_https.py`."""
    assert words[0] == "req"


def read_variables() -> set[str]:
    """Return the variables that the settings name."""
    text = (ROOT / "tinker" / "_basics" / "config.py").read_text()
    return set(re.findall(r'"((?:TINKER|CLOUDFLARE)_[A-Z_]+)"', text))


def check_variable(name: str) -> None:
    if name in READ_BY_OPENSSL or name.startswith("VLLM_"):
        return
    assert name in read_variables(), f"nothing reads {name}"


OTHERS = ("ray", "vllm")  # programs of other projects
GENERATORS = ("npx", "openapi-python-client", "datamodel-codegen", "openapi-generator-cli")
COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "tinker": check_tinker,
    "docker": lambda words: check_tinker(words[words.index("tinker") + 1 :]),
    "python": check_python,
    "nox": check_nox,
    "pip": check_pip,
    "export": lambda words: check_variable(words[0].partition("=")[0]),
    "openssl": check_openssl,
    **{name: partial(check_generator, name) for name in GENERATORS},
    **dict.fromkeys(OTHERS, lambda _: None),
}


def test_variables_exist() -> None:
    """Pages name variables that the settings read, and the page of settings names all of them."""
    named = {
        page: set(re.findall(r"\b(?:TINKER|CLOUDFLARE)_[A-Z_]*[A-Z]\b", page.read_text()))
        for page in pages()
    }
    for name in set().union(*named.values()) - NOT_READ:
        check_variable(name)
    assert named[DOCS / "configuration.md"] == read_variables()


READ_BY_OPENSSL = {"SSL_CERT_FILE", "SSL_CERT_DIR"}
# named as those of the official SDK that have no effect
NOT_READ = {"TINKER_TELEMETRY", "TINKER_LOG", "TINKER_FEATURE_GATES"}


def test_every_example_is_listed() -> None:
    """The list of examples is that of the folder, which has one for most features."""
    page = (DOCS / "examples.md").read_text()
    listed = set(re.findall(r"^\| `(\w+\.py)` \|", page, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "examples").glob("*.py")}
    assert len(listed) >= 30


@pytest.mark.parametrize(("name", "make"), [("retry", "with_tables"), ("settings", "with_table")])
def test_tables_of_the_code_are_fresh(name: str, make: str) -> None:
    """The tables of retries and settings are what `docs/_scripts/*_table.py` writes of the code."""
    script = runpy.run_path(str(DOCS / "_scripts" / f"{name}_table.py"))
    page = script["PAGE"].read_text()
    assert script[make](page) == page


def test_the_reward_written_for_trl_can_be_a_file(tmp_path: Path) -> None:
    """`tinker train --grpo` takes the reward.py of the page, for conversations and for texts."""
    (code,) = (block for block in blocks(DOCS / "from-trl.md", "python") if "def reward(" in block)
    file = tmp_path / "reward.py"
    file.write_text(code)
    line = {"prompt": [{"role": "user", "content": "2 + 3 ="}], "expected": 5}
    assert [Reward(str(file)).score(answer, line) for answer in (" 5\n", " 6\n")] == [1.0, 0.0]
    file.write_text(code.replace('completion[0]["content"]', "completion"))
    assert Reward(str(file)).score(" 5", {"prompt": "2 + 3 =", "expected": 5}) == 1.0


def test_the_figure_of_kl_is_of_such_runs() -> None:
    """KL holds the policy, and runs begin as those that `docs/_scripts/kl_figure.py` has drawn."""
    pytest.importorskip("torch")
    script = runpy.run_path(str(DOCS / "_scripts" / "kl_figure.py"))
    drawing = script["FIGURE"].read_text(encoding="utf-8")
    steps, weights = 8, (0.0, 2.0)
    ends = []
    for weight in weights:
        curves = script["run"](weight, steps)
        panels = re.findall(rf'points="([^"]*)"><title>weight {weight:g}</title>', drawing)
        assert len(panels) == len(curves)
        shares = [float(point.partition(",")[2]) for point in panels[1].split()[:steps]]
        now = [script["TOP"] + script["HEIGHT"] * (1 - one) for one in curves["reward"]]
        assert max(abs(a - b) for a, b in zip(shares, now, strict=True)) < 0.2 * script["HEIGHT"]
        ends.append(curves["kl"][-1])
    assert ends[0] > 2 * ends[1] > 0


def test_command_reference() -> None:
    """What the build writes about the command line names each command with its options."""
    hooks = runpy.run_path(str(DOCS / "_scripts" / "hooks.py"))
    page = SimpleNamespace(url="cli/", meta={})
    text = hooks["on_page_markdown"]((DOCS / "cli.md").read_text(), page=page)
    assert "### tinker checkpoint set-ttl" in text
    assert "--any-base-model" in text
    assert "<!--" not in text
