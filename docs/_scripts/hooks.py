"""What the build of the site fills in: commands, fields of types, the changelog, examples, and
drawings in its colors.
"""

from __future__ import annotations

import html as entities
import inspect
import itertools
import json
import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

import click

DOCS = Path(__file__).resolve().parents[1]
_COMMANDS = re.compile(r"<!-- every command .*? -->", re.DOTALL)
_RECORDS = re.compile(r"<!-- records:\s(.*?) -->", re.DOTALL)
_LOSSES = re.compile(r"<!-- the inputs of each loss .*? -->", re.DOTALL)
_FIRST_PROGRAM = re.compile(r"<!-- the program of the home page .*? -->", re.DOTALL)
_COROUTINES = re.compile(r"<!-- the coroutines of each client, .*? -->", re.DOTALL)
_CHANGELOG = re.compile(r"<!-- CHANGELOG\.md .*? -->", re.DOTALL)
_SOURCE = re.compile(r'href="\.\./\.\./source/([\w./-]+\.py)\.html#')
_NAMED_FILE = re.compile(r"<code>((?:[\w-]+/)*\w+\.(?:py|ipynb))</code>(?!</a>)")
# Reports are read by whoever asks about one server, so no search shows them. Of the rest, a search
# shows guides first, and last what is for developers of servers and of this project.
_UNSEARCHED = ("conformance/", "coverage", "changelog")
_LATER = (
    "reference/",
    "contract/",
    "server-page",
    "chaos",
    "architecture",
    "ecosystem",
    "glossary",
    "examples",
    "cli",
)
# names that contain the names of a guide or of a method
_BOOSTS = {"from-trl/": 0.2, "reference/wire/": 0.02}
# Words that readers search for, for which one page is meant among all those that have them. A tag
# counts more than a heading.
_TAGS = {
    "checkpoints/": ["save", "download"],
    "cli/": ["CLI", "tinker train"],
    "configuration/": ["TINKER_API_KEY"],
    "from-trl/": ["padding"],
    "local-server/": ["Qwen", "quantization"],
    "migrating/": ["tinker-cookbook"],
    "models/": ["list runs"],
    "reference/checkpoints/": ["push to hub"],
    "reference/losses/": ["inputs"],
    "sampling/": ["generate", "num_samples", "stop sequence", "structured"],
    "sft/": ["messages", "warmup", "weight decay"],
    "tokenization/": ["tokenizer", "truncate"],
    "troubleshooting/": ["hang", "stuck", "not decreasing", "session lost"],
}
# Where the types with headings on these pages are defined, so that signatures link to them.
_TYPE_PAGES = ("reference/types/", "reference/records/")
_TYPE_MODULES = (
    "tinker.types",
    "tinker.types.params",
    "tinker.types.results",
    "tinker_wire.models",
    "tinker.training_client",
)
# Put before the code of the search, which completes words: `to` would find titles with `tokens`,
# `C` all that begins with it. A dash before a word would exclude it, and one within a word is a
# space in the index: `-100`, `Ctrl-C`.
_WITHOUT_STOP_WORDS = r"""addEventListener("message", ({ data }) => {
  if (data.type !== 2) return; // not a query
  const finds = (part) =>
    lunr.stopWordFilter(part.toLowerCase()) && !/^([a-z]|us(e|ing))$/i.test(part);
  const says = (part) => !/\w/.test(part) || finds(part);
  const parts = data.data.replace(/-(?=\w)/g, " ").split(/(\s+|")/).filter(says);
  if (parts.some((part) => /[^\s"]/.test(part))) data.data = parts.join("");
});
"""
_SHORT_CODE = re.compile(r"<code>(?=(?:[^<\s&]|&\w+;){1,24}</code>)")
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_CELL = re.compile(r"<t[hd][^>]*>(.*?)</t[hd]>", re.DOTALL)
_LONG_ROW = 65  # characters, which a phone has no room for side by side
_PICTURE = re.compile(r'<p><img alt="([^"]*)" src="([\w./-]+\.svg)" ?/></p>')


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called for each page."""
    if page.url.startswith(_UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    else:
        page.meta["search"] = {
            "boost": _BOOSTS.get(page.url, 0.5 if page.url.startswith(_LATER) else 2)
        }
    if page.url in _TAGS:
        page.meta["tags"] = _TAGS[page.url]
    markdown = _RECORDS.sub(lambda found: records(found[1].split()), markdown)
    markdown = _LOSSES.sub(lambda _: loss_inputs(), markdown)
    markdown = _COROUTINES.sub(lambda _: coroutines(), markdown)
    markdown = _FIRST_PROGRAM.sub(lambda _: first_program(), markdown)
    return _CHANGELOG.sub(lambda _: changelog(), _COMMANDS.sub(lambda _: commands(), markdown))


def first_program() -> str:
    """Return the first program of the home page, and its output."""
    home = (DOCS / "index.md").read_text(encoding="utf-8")
    return home[home.index("```python") :].partition("```\n\n```text")[0] + "```"


def on_page_content(html: str, *, page: Any, config: Any, **_: Any) -> str:
    """Called for each page once it is HTML."""
    if page.url in _TYPE_PAGES:
        link_types(page, config.plugins["autorefs"])
    html = _TABLE.sub(lambda found: stack(found[0]), html)
    html = _NAMED_FILE.sub(lambda found: link_example(found[0], found[1], page.url), html)
    html = _SHORT_CODE.sub('<code class="short">', html)
    return _PICTURE.sub(
        lambda found: picture(found[1], posixpath.normpath(posixpath.join(page.url, found[2]))),
        html,
    )


def stack(table: str) -> str:
    """A table of long texts so that a phone shows the cells of a row below each other, with the
    names of their columns.
    """
    heads, *rows = (_CELL.findall(row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL))
    names = [re.sub(r"<[^>]+>", "", head) for head in heads]
    longest = max((len(re.sub(r"<[^>]+>", "", "".join(row))) for row in rows), default=0)
    if len(names) > 5 or (names[0] != "field" and longest < _LONG_ROW):
        return table
    named = {"default"} if names[0] == "field" else set(names[1:]) if len(names) > 2 else set()
    columns = itertools.cycle(f' data-name="{name}"' if name in named else "" for name in names)
    return re.sub(r"<td", lambda _: f"<td{next(columns)}", table).replace(
        "<table>", "<table data-stacked>"
    )


def link_types(page: Any, references: Any) -> None:
    """Let signatures link to the types that have a heading on this page without a docstring."""
    for heading in (
        one for part in page.toc for section in part.children for one in section.children
    ):
        if "." not in heading.id:  # which a docstring has
            for module in _TYPE_MODULES:
                references.register_anchor(page, f"{module}.{heading.title}", heading.id)


def link_example(shown: str, name: str, url: str) -> str:
    """A file of the examples as a link to its page; other files stay as they are."""
    for folder in ("examples", "examples/notebooks"):
        path = f"{folder}/{name.removeprefix('examples/').removeprefix('notebooks/')}"
        if (DOCS.parent / path).is_file():
            return f'<a href="{posixpath.relpath(f"source/{path}.html", url or ".")}">{shown}</a>'
    return shown


def on_post_build(*, config: Any, **_: Any) -> None:
    """Called once the site is built: writes the pages of the sources that the
    reference links to.
    """
    site = Path(config["site_dir"])
    put_exact_names_first(site / "search" / "search_index.json")
    (search,) = (site / "assets" / "javascripts" / "workers").glob("search.*.js")
    search.write_text(_WITHOUT_STOP_WORDS + search.read_text(encoding="utf-8"), encoding="utf-8")
    pages = (page.read_text(encoding="utf-8") for page in (site / "reference").rglob("*.html"))
    found = {name for page in pages for name in _SOURCE.findall(page)}
    examples = {
        file.relative_to(DOCS.parent).as_posix()
        for file in (DOCS.parent / "examples").rglob("*.py")
    }
    for name in sorted(found | examples):
        write(site, name, source(name))
    for file in (DOCS.parent / "examples").rglob("*.ipynb"):
        write(site, file.relative_to(DOCS.parent).as_posix(), notebook(file))


def put_exact_names_first(file: Path) -> None:
    """A search finds what begins with its word too, rare names first: the method that others begin
    with goes before them.

    Names of commands are common words, so what has them for its title goes before guides that have
    them in a sentence.
    """
    index = json.loads(file.read_text(encoding="utf-8"))
    methods = [one for one in index["docs"] if one["location"].startswith("reference/clients/#")]
    for method in methods:
        if any(one["title"].startswith(f"{method['title']}_") for one in methods):
            method["boost"] = 16
    for command in index["docs"]:
        if command["location"].startswith("cli/#tinker-") and command["title"].count(" ") > 1:
            command["boost"] = 2.5
    file.write_text(json.dumps(index, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def write(site: Path, name: str, text: str) -> None:
    """The page of a file of the repository."""
    file = site / "source" / f"{name}.html"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def notebook(file: Path) -> str:
    """A notebook as a page: its texts, its code, and the outputs and plots of its run."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    parts = [
        _text_cell("".join(cell["source"])) if cell["cell_type"] == "markdown" else _code_cell(cell)
        for cell in cells
    ]
    style = (
        "body{max-width:50rem;margin:2rem auto;padding:0 "
        "1rem;font-family:sans-serif;line-height:1.5}pre{overflow-x:auto}"
    )
    head = (
        '<!DOCTYPE html><html lang="en"><meta '
        f'charset="utf-8"><title>{file.name}</title><style>{style}</style>'
    )
    return head + "\n".join(parts) + "</html>"


def _text_cell(text: str) -> str:
    import markdown

    page = str(markdown.markdown(text, extensions=["tables", "fenced_code"]))
    return re.sub(r'href="([\w-]+\.(?:ipynb|py))"', r'href="\1.html"', page)


def _code_cell(cell: dict[str, Any]) -> str:
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    code = str(highlight("".join(cell["source"]), PythonLexer(), HtmlFormatter(noclasses=True)))
    return code + "".join(map(_output, cell["outputs"]))


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return (
            '<img alt="The plot of this cell" '
            f'src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
        )
    if "text/html" in data:
        return "".join(data["text/html"])
    return f"<pre>{entities.escape(''.join(output.get('text', data.get('text/plain', ''))))}</pre>"


def source(name: str) -> str:
    """A file of the repository with its lines numbered, each a place to link to."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    form = HtmlFormatter(
        full=True,
        title=name,
        linenos="inline",
        lineanchors="L",
        anchorlinenos=True,
        cssstyles="font-size:.9em",
    )
    return str(highlight((DOCS.parent / name).read_text(encoding="utf-8"), PythonLexer(), form))


def picture(description: str, path: str) -> str:
    """A drawing as a part of the page, in its colors."""
    svg = (DOCS / path).read_text(encoding="utf-8")
    places = {
        "wide": "pictures/" not in path,
        "badge": "conformance/" in path,
        "terminal": "/terminal-" in path,
    }
    kinds = " ".join(["picture", *(kind for kind, is_one in places.items() if is_one)])
    scrolls = ' tabindex="0"' if places["terminal"] else ""
    return f'<figure class="{kinds}" aria-label="{description}"{scrolls}>{svg}</figure>'


def records(names: list[str]) -> str:
    """These types with their fields, from the code."""
    return str(runpy.run_path(str(DOCS / "_scripts" / "records.py"))["show"](names))


def loss_inputs() -> str:
    """The inputs of the built-in losses, from the contract: one column for the losses that share
    their inputs.
    """
    from tinker_wire.limits import LOSS_FN_TYPE_INPUT_DTYPES, LOSS_FN_TYPE_INPUTS

    shared: dict[str, list[str]] = {}
    for loss, inputs in LOSS_FN_TYPE_INPUTS.items():
        shared.setdefault(json.dumps(inputs), []).append(f"`{loss}`")
    columns = [json.loads(inputs) for inputs in shared]
    names = dict.fromkeys(
        name for inputs in columns for name in (*inputs["required"], *inputs["optional"])
    )
    heads = " | ".join(", ".join(losses) for losses in shared.values())
    rows = [f"| input | {heads} | shape | dtype |", "|---" * (3 + len(columns)) + "|"]
    for name in names:
        kinds = [next((kind for kind in inputs if name in inputs[kind]), "-") for inputs in columns]
        rows.append(
            f"| `{name}` | {' | '.join(kinds)} | `[N]` | "
            f"{LOSS_FN_TYPE_INPUT_DTYPES.get(name, 'any')} |"
        )
    return "\n".join(rows)


def coroutines() -> str:
    """The `..._async` names of each client, which a search finds here."""
    import tinker

    clients = (
        tinker.ServiceClient,
        tinker.TrainingClient,
        tinker.SamplingClient,
        tinker.RestClient,
        tinker.AdminClient,
    )
    names = {
        one.__name__: [f"`{name}`" for name in dir(one) if re.fullmatch("[a-z].*_async", name)]
        for one in clients
    }
    return "\n".join(f"- **{client}:** {', '.join(ones)}" for client, ones in names.items())


def changelog() -> str:
    """The changelog below its title, with links from this folder."""
    text = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    return text.partition("\n")[2].replace("](docs/", "](")


def commands() -> str:
    """Every command, one heading each, groups unfolded."""
    from tinker.cli import main

    return "\n\n".join(_shown(click.Context(main, info_name="tinker")))


def _shown(context: click.Context) -> list[str]:
    command = context.command
    if not isinstance(command, click.Group):
        return [_one(context)]
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None, name
        found += _shown(click.Context(child, info_name=name, parent=context))
    return found


def _one(context: click.Context) -> str:
    command = context.command
    usage = " ".join(command.collect_usage_pieces(context))
    shown = [
        one
        for one in command.get_params(context)
        if isinstance(one, click.Option) and "--help" not in one.opts
    ]
    options = [record for one in shown if (record := one.get_help_record(context))]
    lines = [
        f"### {context.command_path}",
        f"```text\n{context.command_path} {usage}\n```",
        _text(command.help or ""),
    ]
    if options:
        rows = [f"| `{names}` | {_cell(text)} |" for names, text in options]
        lines.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(lines)


def _text(help_text: str) -> str:
    """Paragraphs that click leaves as they are become blocks."""
    paragraphs = inspect.cleandoc(help_text).split("\n\n")
    return "\n\n".join(
        f"```text\n{one[2:]}\n```" if one.startswith("\b\n") else one for one in paragraphs
    )


def _cell(text: str) -> str:
    """Text that does not end its cell; inside code a bar does not."""
    return text.replace("|", "\\|").replace("\n", " ")
