"""The pictures of the local server's page, from real runs in a headless Chromium:
`nox -s pictures`.

Without a Chromium on the machine the pictures stay as they are.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import tinker
from tinker.local import Settings, running_server

IMAGES = Path(__file__).resolve().parents[1] / "images"
BROWSERS = ("chromium", "google-chrome", "chromium-browser")
TEXT = "The quick brown fox jumps over the lazy dog. "
STEPS = 30
# the width of the page in pixels, and its scheme
SHOTS = ((1400, "light"), (1400, "dark"), (420, "light"))


def train(service: tinker.ServiceClient, base_model: str, rank: int) -> None:
    """Train a run on the sentence, with a checkpoint before and one after."""
    named = {"name": f"fox, rank {rank}", "data": "letters"}
    training = service.create_lora_training_client(
        base_model=base_model, rank=rank, seed=0, user_metadata=named
    )
    tokens = training.encode(TEXT * 2)
    datum = tinker.Datum(tinker.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})
    adam = tinker.AdamParams(learning_rate=3e-3)
    training.save_weights_for_sampler("begin").result()
    for _ in range(STEPS):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(adam).result()
    training.save_state("end").result()
    training.save_weights_for_sampler("end").result()


def compare(page: Any) -> None:
    """Draw both runs, and sample from the newest one's first and last checkpoint, with the buttons
    of the page.
    """
    page.reload()
    page.get_by_label("compare fox, rank 4").check()
    rows = page.locator("#checkpoints tbody tr")
    rows.filter(has_text="/begin").first.get_by_role("button", name="Sample").click()
    rows.filter(has_text="sampler_weights/end").first.get_by_role("button", name="Compare").click()
    play = page.locator("#playground")
    play.get_by_label("prompt").fill("The quick")
    play.get_by_label("temperature").fill("0.7")
    play.get_by_role("button", name="Sample").click()
    play.locator("pre").nth(1).filter(has_text="fox").wait_for()
    page.wait_for_timeout(5000)  # so that the chart of the throughput shows it


def take(page: Any, name: str, *, whole: bool) -> None:
    """Take the picture of a page, or of its first screen."""
    picture = IMAGES / f"{name}.png"
    page.screenshot(path=picture, full_page=whole)
    Image.open(picture).convert("RGB").save(picture.with_suffix(".webp"), quality=85, method=6)
    picture.unlink()
    print(picture.with_suffix(".webp").name)


def main() -> None:
    """Train two runs while the page is open, compare two checkpoints, and take the pictures."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        print("no Chromium here: the pictures of the server's page stay as they are")
        return
    with (
        running_server(Settings(data_dir=Path(tempfile.mkdtemp())), "torch") as url,
        tinker.ServiceClient(base_url=url) as service,
        sync_playwright() as running,
    ):
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(url)
        for rank in (4, 16):
            train(service, "tinker/babble", rank)
        compare(page)
        for width, scheme in SHOTS:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            page.wait_for_timeout(1000)  # charts are drawn again for the new width
            take(page, f"server-page-{width}-{scheme}", whole=True)
        page.set_viewport_size({"width": 1400, "height": 900})
        page.emulate_media(color_scheme="light")
        page.goto(f"{url}/docs")
        page.locator(".opblock").first.wait_for()
        take(page, "server-docs", whole=False)
        browser.close()


if __name__ == "__main__":
    main()
