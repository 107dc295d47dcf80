"""The site that `nox -s docs` has built: what a search finds, and that no part of it is missing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site() -> Path:
    """Return the folder of the site."""
    return Path(os.environ["TINKER_DOCS_SITE"])


def read(site: Path, page: str) -> str:
    return (site / page / "index.html").read_text(encoding="utf-8")


def find_pages(site: Path, word: str, part: str) -> set[str]:
    """Return the pages with this word in the ``title`` or ``text`` of a section."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = (one for one in entries if re.search(rf"\b{word}", one[part], re.IGNORECASE))
    return {one["location"].partition("#")[0].rstrip("/") for one in found}


#: What people search for, by the page that is about it: in its title or a heading, and in its text.
TITLES = {
    "rl": ["GRPO", "PPO"],
    "dpo": ["DPO"],
    "distillation": ["distillation"],
    "checkpoints": ["resume", "crash", "merge the adapter"],
    "errors": ["cancel"],
    "usage": ["cost"],
    "regularizers": ["KL"],
    "evaluation": ["evaluate", "perplexity"],
    "multi-turn": ["tools"],
    "configuration": ["proxy", "environment variables"],
    "reference/types": ["SamplingParams"],
    "from-trl": [
        *("SFTTrainer", "GRPOTrainer", "DPOTrainer", "packing", "bf16", "mixed precision"),
        "gradient checkpointing",
    ],
    "troubleshooting": ["forgot result"],
    "sft": ["dataset", "HF dataset", "mask the prompt"],
    "installation": ["mypy"],
    "servers": ["docker"],
    "local-server": ["out of memory"],
}
TEXTS = {
    "sft": ["hyperparameter"],
    "usage": ["pricing"],
    "glossary": ["RLHF"],
    "from-trl": [
        *("lora_alpha", "num_train_epochs", "per_device_train_batch_size", "report_to"),
        "max_completion_length",
    ],
    "reference/clients": ["save_state_async"],
}


@pytest.mark.parametrize(("part", "table"), [("title", TITLES), ("text", TEXTS)])
def test_a_search_finds_the_page(site: Path, part: str, table: dict[str, list[str]]) -> None:
    """What people search for is in a heading of the page about it, or at least in its text."""
    wanted = [(word, page) for page, words in table.items() for word in words]
    assert [one for one in wanted if one[1] not in find_pages(site, one[0], part)] == []


def test_the_home_page_shows_the_loss(site: Path) -> None:
    """The curve is part of the page, so that it has the page's colors."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<figure class="picture"[^>]*>\s*<svg', home)
    assert "<polyline" in home


def test_constructors_show_what_users_pass(site: Path) -> None:
    """The reference shows no parameter of a constructor that only the package itself uses."""
    text = re.sub(r"<[^>]+>", "", read(site, "reference/clients"))
    assert re.search(r"TrainingClient\(\)", text)
    assert re.search(r"SamplingClient\(\)", text)
    assert not re.search(r"\b_holder\b", text)


def test_signatures_link_to_types(site: Path) -> None:
    """Each type of the package in a signature of a client is a link."""
    text = read(site, "reference/clients")
    assert re.findall(r'<span title="(tinker\.types[^"]*|[^"]*LossConfig)"', text) == []
    assert re.search(r'href="\.\./types/#lossfntype"[^>]*>LossFnType<', text)


def test_nothing_is_left_to_fill_in(site: Path) -> None:
    """Every mark of the hooks is replaced, and no page shows how the package is made."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for mark in ("<!-- records", "attrs.field(", "<!-- CHANGELOG"):
            assert mark not in text, page
        assert not re.search(r"<code>[^<]*\\\|", text), page


def test_the_reference_of_parameters_has_defaults(site: Path) -> None:
    """The table of AdamParams has its fields with their defaults."""
    page = read(site, "reference/types")
    section = page[page.index('id="adamparams"') : page.index('id="dimuonparams"')]
    found = re.findall(r"<td[^>]*>(.*?)</td>", section, re.DOTALL)
    cells = [re.sub(r"<[^>]+>", "", one) for one in found]
    assert cells[cells.index("beta2") + 2] == "0.95"


def test_links_and_files_of_the_site_exist(site: Path) -> None:
    """Each link within the site ends at a file and, where it names one, at a place in it."""
    files = [page for page in site.rglob("*.html") if page.name != "404.html"]
    pages = {page: page.read_text(encoding="utf-8") for page in files}
    missing = set()
    for page, text in pages.items():
        drawn = re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"]+)"', drawn):
            if re.match(r"[a-z]+:|#|//", link):
                continue
            path, _, place = link.partition("#")
            target = (page.parent / path).resolve()
            target = target / "index.html" if target.is_dir() else target
            is_there = not place or target not in pages or f'id="{place}"' in pages[target]
            if not target.exists() or not is_there:
                missing.add((str(page.relative_to(site)), link))
    assert sorted(missing) == []


def test_the_reference_links_to_the_sources(site: Path) -> None:
    """Each public class has a link to its file and line, and it stands there."""
    page = read(site, "reference/clients")
    links = re.findall(r'<a href="\.\./\.\./(source/([\w./]+)\.html)#L-(\d+)"', page)
    assert len(links) > 50
    for file, name, line in links:
        assert f'id="L-{line}"' in (site / file).read_text(encoding="utf-8")
        shown = (ROOT / name).read_text().splitlines()[int(line) - 1]
        assert re.match(r"\s*(@|class|def|async def)", shown), (name, line)
