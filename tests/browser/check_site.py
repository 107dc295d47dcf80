"""The site in a headless Chromium, on a wide and a narrow page, light and dark:
`nox -s browser`.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(os.environ["TINKER_DOCS_SITE"])
PAGES = sorted(page.parent.relative_to(SITE).as_posix() for page in SITE.rglob("index.html"))
SEARCHES = {
    "GRPO": "rl/", "PPO": "rl/", "DPO": "dpo/", "resume": "checkpoints/", "cost": "usage/", "async": "concurrency/",
    "timeout": "errors/", "max_tokens": "sampling/", "streaming": "sampling/", "retry": "retries/", "proxy": "configuration/",
    "image": "vision/", "logprobs": "sampling/", "seed": "sampling/", "progress": "sampling/", "evaluate": "evaluation/",
    "tools": "multi-turn/", "pytest": "testing/", "learning rate": "sft/", "api key": "servers/", "custom loss": "custom-loss/",
    "SFTTrainer": "from-trl/", "TRL": "from-trl/", "packing": "from-trl/", "bf16": "from-trl/",
    "crash": "checkpoints/#continue-your-own-script-after-a-crash", "cancel": "errors/#cancel-a-request",
    "sample": "reference/clients/#tinker.SamplingClient.sample",
    "forward_backward": "reference/clients/#tinker.TrainingClient.forward_backward",
    "cuda out of memory": "local-server/#if-the-server-runs-out-of-memory-oom", "how to resume": "checkpoints/#resume-a-run",
    "log to tensorboard": "observing/", "use with wandb": "observing/", "loss in torch": "custom-loss/", "to": "tokenization/",
    "push to hub": "reference/checkpoints/", "mask prompt": "sft/#build-examples-and-mask-the-prompt", "typing": "installation/",
    "environment variables": "configuration/", "docker": "servers/#run-the-server-in-a-container-docker",
    "eos token": "tokenization/#stop-at-the-eos-token-or-at-another-stop-token",
    "stop token": "sampling/#set-max_tokens-temperature-stops-and-the-seed",
    "system prompt": "sft/#add-a-system-prompt", "early stopping": "evaluation/#stop-early-early-stopping",
    "-100": "from-trl/#labels-and-100", "Ctrl-C": "concurrency/#press-ctrl-c", "parquet": "sft/",
    "gradient accumulation": "sft/#accumulate-gradients", "wandb": "observing/",
    "merge adapter": "checkpoints/#merge-the-adapter-or-use-it-in-transformers-or-vllm",
    "CLI": "cli/", "OOM": "local-server/#if-the-server-runs-out-of-memory-oom", "tokenizer": "tokenization/",
    "generate": "sampling/", "padding": "from-trl/#packing", "warmup": "sft/", "save model": "checkpoints/",
    "download adapter": "checkpoints/", "messages": "sft/", "inference": "sampling/", "overfitting": "evaluation/",
    "hang": "troubleshooting/#a-request-hangs-or-does-not-finish", "truncate": "tokenization/", "mlflow": "observing/",
    "stuck": "troubleshooting/#a-request-hangs-or-does-not-finish", "deploy": "checkpoints/#deploy-a-trained-model",
    "structured output": "sampling/#get-structured-output-json-schema", "num_samples": "sampling/", "qwen": "local-server/",
    "list runs": "models/#list-runs-and-inspect-one", "loss not decreasing": "troubleshooting/#the-loss-is-nan-or-not-decreasing",
    "tinker train": "cli/", "multi gpu": "local-server/#use-several-gpus-multi-gpu", "loss inputs": "reference/losses/",
    "weight decay": "sft/#set-adams-weight-decay-and-gradient-clipping", "download weights": "checkpoints/",
    "unsloth": "from-trl/", "AutoPeftModelForCausalLM": "checkpoints/",
    "quantization": "local-server/#load-the-model-in-four-or-eight-bits-quantization", "max_new_tokens": "from-trl/#generation-with-transformers", "yaml config": "from-trl/#yaml-config",
}  # fmt: skip
# How wide the page is beyond the window, and which blocks are cut off there.
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Names that a line break cuts in two: in tables, unless it is behind a hyphen; in texts, unless
# they are long.
BROKEN = """() => [...document.querySelectorAll("td code, :is(p, li) > code")]
  .filter((code) => (code.closest("td") ? /^[^\\s-]+$/ : /^\\S{1,24}$/).test(code.textContent) && new Set([...code.getClientRects()].map((one) => Math.round(one.top))).size > 1)
  .map((code) => `broken: ${code.textContent}`)"""
# Tables that are wider than the text around them, by their first cell.
TOO_WIDE = """() => [...document.querySelectorAll(".md-typeset__scrollwrap")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => `too wide: ${one.textContent.trim().slice(0, 40)}`)"""
# The addresses of each result of a search.
RESULTS = """() => [...document.querySelectorAll(".md-search-result__item")]
  .map((item) => [...item.querySelectorAll("a")].map((link) => link.href))"""
# Entries of the contents that are cut off, so that two may look alike.
CUT = """() => [...document.querySelectorAll(".md-nav--secondary .md-ellipsis")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => `cut: ${one.textContent.trim()}`)"""
# Texts whose color differs too little from what is behind them: 4.5 to 1, or 3 to 1 for large ones
# (WCAG 2.1, AA).
CONTRAST = """() => {
  const parse = (color) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
    canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const known = new Map()
  const read = (color) => { if (!known.has(color)) known.set(color, parse(color)); return known.get(color) }
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1)
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
  const seen = new Map([[null, {under: [255, 255, 255, 1], opacity: 1}]])
  const see = (node) => {
    if (!seen.has(node)) {
      const style = getComputedStyle(node), above = see(node.parentElement)
      seen.set(node, {under: over(read(style.backgroundColor), above.under), opacity: above.opacity * Number(style.opacity)})
    }
    return seen.get(node)
  }
  const found = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const text = walker.currentNode, node = text.parentElement
    if (!text.data.trim() || node.closest("svg, script, style, noscript") || !node.checkVisibility({visibilityProperty: true})) continue
    const {under, opacity} = see(node)
    if (opacity < 0.1) continue
    const style = getComputedStyle(node), color = read(style.color)
    const shown = over([...color.slice(0, 3), color[3] * opacity], under)
    const [high, low] = [light(shown), light(under)].sort((one, other) => other - one)
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
    const ratio = (high + 0.05) / (low + 0.05)
    if (ratio < (large ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${node.tagName}.${node.className} ${text.data.trim().slice(0, 40)}`)
  }
  return [...new Set(found)].slice(0, 10)
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Yield the site on a port."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def look(browser: Any, url: str, width: int, scheme: str) -> dict[str, list[str]]:
    """Return what is wrong on every page of the site, by page."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    wrong: dict[str, list[str]] = {}
    said: list[str] = []
    page.on(
        "console",
        lambda message: said.append(message.text) if message.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "response",
        lambda answer: (
            said.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
        ),
    )
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith((url, "data:", "blob:"))
            else said.append(f"asks {asked.url}")
        ),
    )
    for name in PAGES:
        said.clear()
        page.goto(url + ("" if name == "." else f"{name}/"), wait_until="load")
        found = [*said, *page.evaluate(CONTRAST), *page.evaluate(BROKEN), *page.evaluate(CUT)]
        if (pixels := page.evaluate(OVERFLOW)) > 0:
            found.append(f"scrolls by {pixels} pixels")
        if found:
            wrong[name] = found
    page.close()
    return wrong


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_every_page(browser: Any, url: str, width: int, scheme: str) -> None:
    """No page has an error, scrolls sideways, asks another host, breaks a name, or has text that is
    hard to read.
    """
    assert look(browser, url, width, scheme) == {}


@pytest.mark.parametrize("width", [390, 1280, 1400])
def test_the_tables_of_trl_fit(browser: Any, url: str, width: int) -> None:
    """No table of the page scrolls sideways, and none breaks an option at a hyphen."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{url}from-trl/")
    found = page.evaluate(TOO_WIDE) + page.evaluate(BROKEN.replace("\\s-", "\\s"))
    page.close()
    assert found == []


def search(browser: Any, url: str, word: str) -> list[list[str]]:
    """Return the addresses that a search shows: of each page, followed by its sections."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(url)
    page.click("label.md-search__icon[for=__search]", force=True)
    page.fill("input.md-search__input", word)
    page.wait_for_selector(".md-search-result__item a")
    shown = page.evaluate(RESULTS)  # at once, as they are drawn anew while one types
    page.close()
    return [[re.sub(r"\?[^#]*", "", link).removeprefix(url) for link in links] for links in shown]


@pytest.mark.parametrize("word", SEARCHES)
def test_a_search_shows_the_page(browser: Any, url: str, word: str) -> None:
    """The page that is about a word is the first result, and the section about it the first of that
    page.
    """
    first = search(browser, url, word)[0]
    # a page, or a section, which is below its page
    assert first["#" in SEARCHES[word]] == SEARCHES[word], first


COMMANDS = re.findall(
    r'id="tinker-[^>]*>tinker ([\w-]+ [\w-]+)<',
    (SITE / "cli" / "index.html").read_text(encoding="utf-8"),
)


@pytest.mark.parametrize("words", [*COMMANDS, "tinker checkpoint list"])
def test_a_search_for_a_command_shows_its_reference(browser: Any, url: str, words: str) -> None:
    """The page of the commands is the first or the second result, and the command the first of that
    page.
    """
    shown = search(browser, url, words)[:2]
    assert f"cli/#tinker-{words.removeprefix('tinker ').replace(' ', '-')}" in [
        page[1] for page in shown if page[1:]
    ], shown


def test_a_search_for_a_coroutine_shows_the_reference(browser: Any, url: str) -> None:
    """Names of older code, which have no entry of their own, are listed there."""
    for name in ("create_lora_training_client_async", "save_state_async", "list_checkpoints_async"):
        assert any(
            "reference/clients/#coroutines-for-older-code" in page
            for page in search(browser, url, name)
        ), name
