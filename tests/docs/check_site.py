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


def find_pages(site: Path, word: str, part: str) -> set[str]:
    """Return the pages with this word in the ``title`` or ``text`` of a section."""
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = (one for one in entries if re.search(rf"\b{word}", one[part], re.IGNORECASE))
    return {one["location"].partition("#")[0].rstrip("/") for one in found}


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("GRPO", "rl"),
        ("PPO", "rl"),
        ("DPO", "dpo"),
        ("distillation", "distillation"),
        ("resume", "checkpoints"),
        ("crash", "checkpoints"),
        ("cancel", "errors"),
        ("cost", "usage"),
        ("KL", "regularizers"),
        ("evaluate", "evaluation"),
        ("tools", "multi-turn"),
        ("proxy", "configuration"),
        ("perplexity", "evaluation"),
        ("SamplingParams", "reference/types"),
        ("SFTTrainer", "from-trl"),
        ("GRPOTrainer", "from-trl"),
        ("DPOTrainer", "from-trl"),
        ("packing", "from-trl"),
        ("bf16", "from-trl"),
        ("mixed precision", "from-trl"),
        ("gradient checkpointing", "from-trl"),
        ("merge the adapter", "checkpoints"),
        ("forgot result", "troubleshooting"),
        ("dataset", "sft"),
        ("HF dataset", "sft"),
        ("mask the prompt", "sft"),
        ("environment variables", "configuration"),
        ("mypy", "installation"),
        ("docker", "servers"),
        ("out of memory", "local-server"),
    ],
)
def test_a_search_finds_the_page(site: Path, word: str, page: str) -> None:
    """What people search for is in the title or a heading of the page that is about it."""
    assert page in find_pages(site, word, "title")


@pytest.mark.parametrize(
    ("word", "page"),
    [
        ("hyperparameter", "sft"),
        ("pricing", "usage"),
        ("RLHF", "glossary"),
        ("lora_alpha", "from-trl"),
        ("num_train_epochs", "from-trl"),
        ("per_device_train_batch_size", "from-trl"),
        ("max_completion_length", "from-trl"),
        ("report_to", "from-trl"),
        ("save_state_async", "reference/clients"),
    ],
)
def test_a_search_finds_words_of_the_text(site: Path, word: str, page: str) -> None:
    """What people call something else is in the text of the page that is about it."""
    assert page in find_pages(site, word, "text")


def test_the_home_page_shows_the_loss(site: Path) -> None:
    """The curve is part of the page, so that it has the page's colors."""
    home = (site / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<figure class="picture"[^>]*>\s*<svg', home)
    assert "<polyline" in home


def test_constructors_show_what_users_pass(site: Path) -> None:
    """The reference shows no parameter of a constructor that only the package itself uses."""
    text = re.sub(
        r"<[^>]+>", "", (site / "reference" / "clients" / "index.html").read_text(encoding="utf-8")
    )
    assert re.search(r"TrainingClient\(\)", text)
    assert re.search(r"SamplingClient\(\)", text)
    assert not re.search(r"\b_holder\b", text)


def test_signatures_link_to_types(site: Path) -> None:
    """Each type of the package in a signature of a client is a link."""
    text = (site / "reference" / "clients" / "index.html").read_text(encoding="utf-8")
    assert re.findall(r'<span title="(tinker\.types[^"]*|[^"]*LossConfig)"', text) == []
    assert re.search(r'href="\.\./types/#lossfntype"[^>]*>LossFnType<', text)


def test_nothing_is_left_to_fill_in(site: Path) -> None:
    """Every mark of the hooks is replaced, and no page shows how the package is made."""
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "<!-- records" not in text, page
        assert "attrs.field(" not in text, page
        assert "<!-- CHANGELOG" not in text, page
        assert not re.search(r"<code>[^<]*\\\|", text), page


def test_the_reference_of_parameters_has_defaults(site: Path) -> None:
    """The table of AdamParams has its fields with their defaults."""
    page = (site / "reference" / "types" / "index.html").read_text(encoding="utf-8")
    section = page[page.index('id="adamparams"') : page.index('id="dimuonparams"')]
    cells = [
        re.sub(r"<[^>]+>", "", one)
        for one in re.findall(r"<td[^>]*>(.*?)</td>", section, re.DOTALL)
    ]
    assert cells[cells.index("beta2") + 2] == "0.95"


def test_links_and_files_of_the_site_exist(site: Path) -> None:
    """Each link within the site ends at a file and, where it names one, at a place in it."""
    pages = {
        page: page.read_text(encoding="utf-8")
        for page in site.rglob("*.html")
        if page.name != "404.html"
    }
    missing = set()
    for page, text in pages.items():
        for link in re.findall(
            r'(?:href|src)="([^"]+)"', re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
        ):
            if re.match(r"[a-z]+:|#|//", link):
                continue
            path, _, place = link.partition("#")
            target = (page.parent / path).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                place and target in pages and f'id="{place}"' not in pages[target]
            ):
                missing.add((str(page.relative_to(site)), link))
    assert sorted(missing) == []


def test_the_reference_links_to_the_sources(site: Path) -> None:
    """Each public class has a link to its file and line, and it stands there."""
    page = (site / "reference" / "clients" / "index.html").read_text(encoding="utf-8")
    links = re.findall(r'<a href="\.\./\.\./(source/([\w./]+)\.html)#L-(\d+)"', page)
    assert len(links) > 50
    for file, name, line in links:
        assert f'id="L-{line}"' in (site / file).read_text(encoding="utf-8")
        assert re.match(
            r"\s*(@|class|def|async def)", (ROOT / name).read_text().splitlines()[int(line) - 1]
        ), (name, line)
