"""The page of the server in a headless Chromium: `nox -s browser`, which needs one on the machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

import tinker
from tinker.local import Settings, running_server

KEY = "a key that nobody may read"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, of the system or of Playwright."""
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield a server of two models with a key and three runs: the newest has four steps, and two checkpoints to sample from."""
    with running_server(Settings(data_dir=tmp_path, api_key=KEY), "toy", model=["tinker/toy", "org/other"]) as url:
        service = tinker.ServiceClient(base_url=url, api_key=KEY)
        other = service.create_lora_training_client(base_model="org/other", rank=4)
        other.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
        service.create_lora_training_client(base_model="org/other", rank=2).result()
        training = service.create_lora_training_client(
            base_model="tinker/toy", rank=8, user_metadata={"name": "first try", "data": "letters"}
        )
        text = [101] * 32
        datum = tinker.Datum(
            model_input=tinker.ModelInput.from_ints(text[:-1]),
            loss_fn_inputs={"target_tokens": text[1:], "weights": [1.0] * 31},
        )
        training.save_weights_for_sampler("begin").result()
        for _ in range(4):
            training.forward_backward([datum], "cross_entropy").result()
            training.optim_step(tinker.AdamParams(learning_rate=1.0)).result()
        training.save_weights_for_sampler("end").result()
        yield url


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """Yield the open page. What its console or its policy complains of fails the test, and so does a request to elsewhere."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.asked = asked
    page.goto(url)
    yield page
    page.close()
    assert [text for text in complaints if "401" not in text and "ERR_FAILED" not in text] == []
    assert [one for one in asked if not one.startswith((url, "blob:", "data:"))] == []
    assert [one for one in asked if KEY in one or "nobody" in one] == []


def enter_key(page: Any) -> None:
    """Give the key, and wait for the data."""
    page.get_by_label("key", exact=True).fill(KEY)
    page.get_by_role("button", name="Show").click()
    page.locator("#runs tbody tr").first.wait_for()


def test_the_page_shows_nothing_without_the_key(page: Any) -> None:
    """It asks for the key, says when that is wrong, and keeps it out of every address."""
    page.get_by_label("key", exact=True).fill("wrong")
    page.get_by_role("button", name="Show").click()
    page.get_by_text("does not take this key").wait_for()
    assert "tinker/toy" not in page.content()
    enter_key(page)
    page.reload()
    page.locator("#runs tbody tr").first.wait_for()


def test_the_page_shows_runs_and_curves(page: Any) -> None:
    """The newest run is chosen and drawn, and metrics can be picked."""
    enter_key(page)
    row = page.locator("#runs tbody tr").first
    assert row.locator("td").nth(4).inner_text() == "4"
    page.locator(".chart canvas").nth(1).wait_for()
    picker = page.get_by_label("metric").first
    assert picker.input_value() == "loss per token"
    picker.select_option("loss:sum")
    page.locator(".u-legend").first.filter(has_text="loss:sum").wait_for()


def test_the_page_opens_on_a_run_with_steps(page: Any, url: str) -> None:
    """Without a run in the address the newest with a curve is chosen, else the one it names; its row is in view in its box."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    for _ in range(30):
        newest = service.create_lora_training_client(base_model="org/other", rank=1).result()
    enter_key(page)
    for name in ("first try", newest.model_id[-6:]):
        page.locator("#runs tr.chosen").filter(has_text=name).wait_for()
        page.wait_for_function("""() => {
            const [row, box] = ["tr.chosen", ".scroll"].map(name => document.querySelector(`#runs ${name}`).getBoundingClientRect())
            return box.top <= row.top && row.bottom <= box.bottom && scrollY === 0
        }""")
        page.goto(f"{url}#run={newest.model_id}")
        page.reload()


def test_the_throughput_counts_seconds_back(page: Any) -> None:
    """The axis says how many seconds ago, so it has no negative number."""
    page.add_init_script("""
        const fill = CanvasRenderingContext2D.prototype.fillText
        window.drawn = []
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            if (this.canvas.closest("section").textContent.startsWith("Throughput")) drawn.push(text)
            fill.call(this, text, ...at)
        }
    """)
    page.reload()
    enter_key(page)
    page.wait_for_function("() => drawn.length > 40")
    assert [text for text in page.evaluate("drawn") if text.startswith("-")] == []


def test_only_what_has_a_price_has_a_cost(page: Any) -> None:
    """A kind of tokens without a price costs a dash."""
    enter_key(page)
    costs = page.locator("section").filter(has_text="Usage and cost").locator("tbody td:last-child")
    assert set(costs.all_inner_texts()) == {"\u2013"}
    page.get_by_label("training", exact=True).fill("1000000")
    assert costs.last.inner_text() not in ("\u2013", "0.0000")


def test_runs_are_found_and_compared(page: Any) -> None:
    """Runs have their names and can be filtered; several are in one chart, and the address keeps which."""
    enter_key(page)
    rows = page.locator("#runs tbody tr")
    assert rows.count() == 3
    assert rows.first.locator("td").first.inner_text() == "first try data=letters"
    page.get_by_label("with steps").check()
    assert rows.count() == 2
    rows.nth(1).get_by_role("checkbox").check()
    page.locator(".u-legend").first.filter(has_text="first try").wait_for()
    assert "beside=" in page.url
    page.reload()
    page.locator(".u-legend").first.filter(has_text="first try").wait_for()
    page.get_by_label("filter").fill("first")
    assert rows.count() == 1
    page.get_by_label("filter").fill("")
    page.get_by_role("button", name="data=letters").click()
    assert page.get_by_label("filter").input_value() == "data=letters"
    assert rows.count() == 1
    page.get_by_label("metric").first.select_option("tokens:sum")
    page.get_by_label("log scale").first.check()
    page.locator(".chart canvas").first.wait_for()


def test_runs_are_sorted_by_any_column(page: Any) -> None:
    """The newest run is first; a click sorts by a column, another one turns the order round, and the header says which it is."""
    enter_key(page)
    names = page.locator("#runs tbody td.id")
    assert names.first.inner_text() == "first try data=letters"
    page.get_by_role("button", name="rank").click()
    ranks = page.locator("#runs tbody td:nth-child(4)")
    assert ranks.all_inner_texts() == ["2", "4", "8"]
    page.get_by_role("button", name="rank").click()
    assert ranks.all_inner_texts() == ["8", "4", "2"]
    assert page.locator("#runs th[aria-sort=descending]").inner_text().startswith("rank")


def test_a_run_has_the_colour_of_its_line(page: Any) -> None:
    """Runs that are drawn have a mark of their line's colour, and others have none."""
    enter_key(page)
    page.get_by_label("with steps").check()
    page.locator("#runs tbody tr").nth(1).get_by_role("checkbox").check()
    page.locator(".u-legend").first.filter(has_text="first try").wait_for()
    colour = "one => getComputedStyle(one)"
    marks = [page.locator("#runs .swatch").nth(at).evaluate(f"{colour}.backgroundColor") for at in range(2)]
    lines = page.locator(".u-legend").first.locator(".u-series .u-marker")
    assert marks == [lines.nth(at + 1).evaluate(f"{colour}.borderColor") for at in range(2)]
    assert marks[0] != marks[1]
    page.get_by_label("with steps").uncheck()
    assert page.locator("#runs .swatch[style*=background]").count() == 2


def test_the_newest_run_is_followed_until_one_is_chosen(page: Any, url: str) -> None:
    """A run that begins is drawn with its first step; a run that was chosen stays, until the newest is asked for again."""
    enter_key(page)
    service = tinker.ServiceClient(base_url=url, api_key=KEY)

    def begin(name: str) -> None:
        training = service.create_lora_training_client("tinker/toy", rank=1, user_metadata={"name": name})
        training.optim_step(tinker.AdamParams()).result()

    assert page.get_by_label("follow the newest").is_checked()
    begin("second try")
    page.locator("#runs tr.chosen").filter(has_text="second try").wait_for()
    page.get_by_role("button", name="first try").click()
    begin("third try")
    page.locator("#runs tbody tr").filter(has_text="third try").wait_for()
    assert "first try" in page.locator("#runs tr.chosen").inner_text()
    page.get_by_label("follow the newest").check()
    page.locator("#runs tr.chosen").filter(has_text="third try").wait_for()


def test_what_a_loop_reports_is_drawn_and_extremes_do_not_flatten_it(page: Any, url: str) -> None:
    """A reward is drawn by itself; a few values that are far away are left out of the range until they are wanted."""
    page.add_init_script("""
        const fill = CanvasRenderingContext2D.prototype.fillText
        window.ticks = []
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            if (this.canvas.closest("section").textContent.startsWith("Rewards")) ticks.push(text)
            fill.call(this, text, ...at)
        }
    """)
    page.reload()
    enter_key(page)
    service = tinker.ServiceClient(base_url=url, api_key=KEY, telemetry=True)
    training = service.create_lora_training_client("tinker/toy", rank=1, user_metadata={"name": "rewarded"})
    training.optim_step(tinker.AdamParams()).result()
    telemetry = training.get_telemetry()
    assert telemetry is not None
    for step in range(1, 21):
        reward = -1e6 if step == 20 else step / 20
        telemetry.log("metrics", {"training_run_id": training.result().model_id, "step": step, "reward": reward})
    assert telemetry.wait_until_drained()
    page.locator("#runs tr.chosen").filter(has_text="rewarded").filter(has_text="-1000000").wait_for()
    page.get_by_label("leave out extreme values").wait_for()
    page.wait_for_function("() => ticks.includes('0.5') && ticks.includes('step')")
    page.evaluate("ticks.length = 0")
    page.get_by_label("leave out extreme values").uncheck()
    page.wait_for_function("() => ticks.includes('-1M')")


def test_a_prompt_is_sent_as_a_chat_message(page: Any) -> None:
    """With the box ticked, the prompt goes through the chat template, and the answer is shown like any other."""
    enter_key(page)
    page.get_by_label("as a chat message").check()
    with page.expect_request("**/v1/chat/completions") as asked:
        page.locator("#playground").get_by_role("button", name="Sample").click()
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "The "}]
    page.wait_for_function("() => document.querySelector('#playground pre').textContent !== ''")


def test_a_server_that_has_ended_is_not_said_to_be_seen(page: Any) -> None:
    """When the server no longer answers, the page says so, keeps what it knew, and does not say when sessions were seen."""
    enter_key(page)
    page.route("**/overview*", lambda route: route.abort())
    page.get_by_text("The server does not answer").wait_for()
    page.get_by_text("not known").first.wait_for()
    assert page.locator("#runs tbody tr").count() == 3


def test_the_page_shows_each_model(page: Any) -> None:
    """At the top, in the queue, and among what can be sampled from."""
    enter_key(page)
    page.get_by_text("tinker/toy, org/other").wait_for()
    assert [text.split() for text in page.locator("#queue tbody tr").all_inner_texts()] == [
        ["tinker/toy", "0", "0"],
        ["org/other", "0", "0"],
    ]
    assert page.get_by_label("model 1").locator("option").all_inner_texts()[:2] == ["tinker/toy", "org/other"]


def test_two_checkpoints_are_compared_side_by_side(page: Any) -> None:
    """One click each, one prompt for both, and texts as the models draw them."""
    enter_key(page)
    rows = page.locator("#checkpoints tbody tr")
    rows.filter(has_text="/begin").get_by_role("button", name="Sample").click()
    rows.filter(has_text="/end").get_by_role("button", name="Compare").click()
    play = page.locator("#playground")
    play.get_by_label("prompt").fill("e")
    play.get_by_label("temperature").fill("0")
    play.get_by_label("max_tokens").fill("8")
    play.get_by_role("button", name="Sample").click()
    play.get_by_text("eeeeeeee").wait_for()
    begin, end = play.locator("pre").all_inner_texts()
    assert end == "eeeeeeee"
    assert len(begin) == 8
    assert begin != end


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window(page: Any, width: int, scheme: str) -> None:
    """Nothing is wider than the window, and both schemes have readable text."""
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    enter_key(page)
    page.locator(".chart canvas").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground, text = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    light = [sum(map(int, value[4:-1].split(","))) for value in (ground, text)]
    assert (light[0] > light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 400


def test_a_phone_shows_every_column(page: Any) -> None:
    """At 400 pixels each cell of the runs, checkpoints and sessions is in the window, buttons too, and nothing scrolls sideways."""
    page.set_viewport_size({"width": 400, "height": 800})
    enter_key(page)
    first = page.locator("#runs tbody tr").first
    assert [first.get_by_text(text, exact=True).count() for text in ("4", "open", "tinker/toy")] == [1, 1, 1]
    assert page.locator("#checkpoints").get_by_role("button").count() == 6
    beyond = "found => found.filter(one => one.getBoundingClientRect().right > 400).map(one => one.textContent)"
    assert page.locator("td, button, select").evaluate_all(beyond) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_checkpoints_to_sample_from_begin_with_their_names(page: Any) -> None:
    """The end of a path is what a narrow list shows of it; the whole path is the title."""
    enter_key(page)
    page.locator("#checkpoints tbody tr").filter(has_text="/end").get_by_role("button", name="Sample").click()
    picker = page.get_by_label("model 1")
    assert picker.locator("option:checked").inner_text() == "end of first try"
    assert picker.get_attribute("title") == picker.input_value()
    assert picker.input_value().endswith("/sampler_weights/end")


def test_a_checkpoint_with_the_name_of_its_run_has_one_name(page: Any, url: str) -> None:
    """The name is not said twice, and an option of sampling that is cleared is not sent."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    training = service.create_lora_training_client(base_model="tinker/toy", rank=1, user_metadata={"name": "pig"})
    training.save_weights_for_sampler("pig").result()
    enter_key(page)
    page.get_by_label("model 1").select_option("pig")
    page.get_by_label("max_tokens").fill("")
    with page.expect_request("**/v1/completions") as asked:
        page.locator("#playground").get_by_role("button", name="Sample").click()
    assert asked.value.post_data_json.keys() == {"model", "prompt", "temperature", "seed", "stream"}


def test_the_document_of_the_api_can_be_operated(browser: Any, url: str) -> None:
    """Swagger UI lists the operations of the contract, and asks this server, whose page is a link away."""
    page = browser.new_page()
    page.goto(f"{url}/docs")
    page.locator("#operations-service-healthz").click()
    page.get_by_role("button", name="Execute").first.click()
    page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()
    page.get_by_role("link", name="server's page").click()
    page.wait_for_url(f"{url}/")
    page.close()
