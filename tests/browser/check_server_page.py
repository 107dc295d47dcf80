"""The page of the server in a headless Chromium: `nox -s browser`, which needs one
on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker.local import Settings, running_server
from tinker.local.engines.toy import ToyEngine
from tinker.local.serving import serve_in_thread
from tinker.local.state import State

KEY = "a key that nobody may read"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Yield a server of two models with a key and three runs: the newest has four steps, and two
    checkpoints to sample from.
    """
    with running_server(
        Settings(data_dir=tmp_path, api_key=KEY), "toy", model=["tinker/toy", "org/other"]
    ) as url:
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
    """Yield the open page. What its console or its policy complains of fails the test, and so does
    a request to elsewhere.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: (
            complaints.append(message.text) if message.type in ("error", "warning") else None
        ),
    )
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


def note_texts(page: Any, section: str) -> None:
    """Note what the charts of a section write from the next load on, and how far to the left."""
    page.add_init_script(
        """
        const fill = CanvasRenderingContext2D.prototype.fillText
        window.ticks = Object.assign([], { left: Infinity })
        CanvasRenderingContext2D.prototype.fillText = function (text, x, ...rest) {
            if (this.canvas.closest("section").textContent.startsWith("SECTION")) {
                ticks.push(text)
                if (this.textAlign === "right") ticks.left = Math.min(ticks.left, x - this.measureText(text).width)
            }
            fill.call(this, text, x, ...rest)
        }
    """.replace("SECTION", section)
    )


def report(url: str, name: str, rewards: Sequence[float], metric: str = "reward") -> None:
    """Begin a run with one step, and report its rewards, or another metric."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY, telemetry=True)
    training = service.create_lora_training_client(
        "tinker/toy", rank=1, user_metadata={"name": name}
    )
    training.optim_step(tinker.AdamParams()).result()
    telemetry = training.get_telemetry()
    assert telemetry is not None
    for step, reward in enumerate(rewards, 1):
        telemetry.log(
            "metrics", {"training_run_id": training.result().model_id, "step": step, metric: reward}
        )
    assert telemetry.wait_until_drained()


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
    assert row.locator("td").nth(5).inner_text() == "4"
    page.locator(".chart canvas").nth(1).wait_for()
    picker = page.get_by_label("metric").first
    assert picker.input_value() == "loss per token"
    picker.select_option("loss:sum")
    page.locator(".u-legend").first.filter(has_text="loss:sum").wait_for()


def test_the_page_opens_on_a_run_with_steps(page: Any, url: str) -> None:
    """Without a run in the address the newest with a curve is chosen, else the one it names; its
    row is in view in its box.
    """
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
    note_texts(page, "Throughput")
    page.reload()
    enter_key(page)
    page.wait_for_function("() => ticks.length > 40")
    assert [text for text in page.evaluate("ticks") if text.startswith("-")] == []


def test_only_what_has_a_price_has_a_cost(page: Any) -> None:
    """A kind of tokens without a price costs a dash."""
    enter_key(page)
    costs = page.locator("section").filter(has_text="Usage and cost").locator("tbody td:last-child")
    assert set(costs.all_inner_texts()) == {"\u2013"}
    page.get_by_label("training", exact=True).fill("1000000")
    assert costs.last.inner_text() not in ("\u2013", "0.0000")


def test_runs_are_found_and_compared(page: Any) -> None:
    """Runs have their names and can be filtered; several are in one chart, and the address keeps
    which.
    """
    enter_key(page)
    rows = page.locator("#runs tbody tr")
    assert rows.count() == 3
    assert rows.first.locator("td.id").inner_text() == "first try data=letters"
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
    """The newest run is first; a click sorts by a column, another one turns the order round, and
    the header says which it is.
    """
    enter_key(page)
    names = page.locator("#runs tbody td.id")
    assert names.first.inner_text() == "first try data=letters"
    page.get_by_role("button", name="rank").click()
    ranks = page.locator("#runs tbody td:nth-child(5)")
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
    marks = [
        page.locator("#runs .swatch").nth(at).evaluate(f"{colour}.backgroundColor")
        for at in range(2)
    ]
    lines = page.locator(".u-legend").first.locator(".u-series .u-marker")
    assert marks == [lines.nth(at + 1).evaluate(f"{colour}.borderColor") for at in range(2)]
    assert marks[0] != marks[1]
    page.get_by_label("with steps").uncheck()
    assert page.locator("#runs .swatch[style*=background]").count() == 2


def test_what_is_drawn_is_what_is_marked_and_named(page: Any, url: str) -> None:
    """A filter that hides the newest draws the newest that it leaves, with its own values; without
    it the choice is back.
    """
    enter_key(page)
    report(url, "page1", [0.25])
    report(url, "page2", [0.75])
    section = page.locator("section").filter(has_text="Rewards and other")
    marked = page.locator("#runs tr.chosen .swatch[style*=background]")
    words = page.get_by_label("filter")

    def expect(name: str, last: str) -> None:
        section.locator("h2").filter(has_text=f"of {name}").wait_for()
        section.get_by_text(f"last {last}").wait_for()
        assert page.locator("section h2").filter(has_text="Loss").inner_text() == f"Loss of {name}"
        assert name in page.locator("#runs tr.chosen").inner_text()
        assert marked.count() == page.locator(".swatch[style*=background]").count() == 1

    expect("page2", "0.75")
    words.fill("page1")
    expect("page1", "0.25")
    words.fill("")
    expect("page2", "0.75")
    page.get_by_role("button", name="page1").click()
    expect("page1", "0.25")
    words.fill("page2")
    expect("page2", "0.75")
    words.fill("nobody")
    section.get_by_text("Nothing to draw yet").wait_for()
    page.reload()
    expect("page1", "0.25")


def test_the_newest_run_is_followed_until_one_is_chosen(page: Any, url: str) -> None:
    """A run that begins is drawn with its first step; a run that was chosen stays, until the newest
    is asked for again.
    """
    enter_key(page)
    service = tinker.ServiceClient(base_url=url, api_key=KEY)

    def begin(name: str) -> None:
        training = service.create_lora_training_client(
            "tinker/toy", rank=1, user_metadata={"name": name}
        )
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
    """A reward is drawn by itself; a few values that are far away are left out of the range until
    they are wanted.
    """
    note_texts(page, "Rewards")
    page.reload()
    enter_key(page)
    report(url, "rewarded", [*(step / 20 for step in range(1, 20)), -1e6])
    page.locator("#runs tr.chosen").filter(has_text="rewarded").filter(
        has_text="-1000000"
    ).wait_for()
    page.get_by_label("leave out extreme values").wait_for()
    page.wait_for_function("() => ticks.includes('0.5') && ticks.includes('step')")
    page.evaluate("ticks.length = 0")
    page.get_by_label("leave out extreme values").uncheck()
    page.wait_for_function("() => ticks.includes('-1M')")


def test_a_loop_without_a_reward_is_drawn_with_its_evaluation(page: Any, url: str) -> None:
    """A loss on held-out data comes before the norm of the gradient; without rewards the page says
    how a loop reports them.
    """
    enter_key(page)
    report(url, "evaluated", [0.7, 0.6], "val_loss")
    page.locator("#runs tr.chosen").filter(has_text="evaluated").wait_for()
    page.locator("section").filter(has_text="Rewards and other").locator(".u-legend").filter(
        has_text="val_loss"
    ).wait_for()
    page.get_by_text("ServiceClient(telemetry=True)").wait_for()


def test_refused_requests_are_listed(page: Any, url: str) -> None:
    """A click on their number shows status, operation and count of each below the tiles, which are
    aligned and stay in place.
    """
    enter_key(page)
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    with pytest.raises(tinker.NotFoundError):
        service.create_rest_client().get_training_run("nobody").result()
    tile = page.locator(".tile").filter(has_text="requests refused")
    places = "found => found.map(one => JSON.stringify(one.getBoundingClientRect()))"
    assert (
        len(
            set(
                page.locator(".tile b").evaluate_all(
                    "found => found.map(one => one.getBoundingClientRect().top)"
                )
            )
        )
        == 1
    )
    before = page.locator(".tile").evaluate_all(places)
    tile.click()
    listed = page.get_by_text("404 get_training_run: 1").bounding_box()
    assert page.locator(".tile").evaluate_all(places) == before
    assert listed["y"] > tile.bounding_box()["y"] + tile.bounding_box()["height"]
    assert page.locator("#refused").bounding_box()["width"] > 1200
    tile.click()
    assert page.get_by_text("404 get_training_run: 1").count() == 0


def test_a_run_of_another_scale_is_drawn_and_not_taken_for_an_extreme(page: Any, url: str) -> None:
    """What is extreme is so within its own run; the labels of an axis are in their place, however
    small its values are.
    """
    note_texts(page, "Rewards")
    page.reload()
    enter_key(page)
    report(url, "large", [0.7, 0.72, 0.69, 0.71, 0.7])
    report(url, "small", [1e-5 + 1e-6 * (step % 7) for step in range(60)])
    page.locator("#runs tr.chosen").filter(has_text="small").wait_for()
    page.wait_for_function("() => ticks.includes('1.2e-5')")
    assert page.evaluate("ticks.left") >= 0
    page.get_by_label("compare large").check()
    page.wait_for_function("() => ticks.includes('0.6')")
    assert page.get_by_label("leave out extreme values").count() == 0


def test_a_chart_without_a_log_scale_says_why(page: Any, url: str) -> None:
    """The box is there, and cannot be ticked; it names the run that has values which are not above
    0.
    """
    enter_key(page)
    report(url, "losing", [1.0, -1.0])
    page.locator("#runs tr.chosen").filter(has_text="losing").wait_for()
    assert page.get_by_label("log scale").nth(1).is_disabled()
    page.get_by_title("reward of losing is not always above 0").wait_for()


def test_curves_are_smoothed(page: Any, url: str) -> None:
    """The legend has one line for each run, with its average; the line as it was is behind it."""
    enter_key(page)
    report(url, "even", [0.5, 0.5])
    report(url, "noisy", [1.0, 0.0])
    page.locator("#runs tr.chosen").filter(has_text="noisy").wait_for()
    section = page.locator("section").filter(has_text="Rewards and other")
    section.get_by_label("smooth").fill("0.9")
    page.get_by_label("compare even").check()
    section.locator(".u-series:visible").filter(has_text="noisy").filter(has_text="0.9").wait_for()
    assert section.locator(".u-series").filter(has_text="noisy").count() == 2


def test_names_and_boxes_stay_while_the_runs_scroll(page: Any, url: str) -> None:
    """With long names at 1024 pixels each cell fits or scrolls, and the first two columns do not
    move.
    """
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    parent = service.create_lora_training_client("tinker/toy", rank=1).result().model_id
    for name in ("again", "a name of a run that is as long as a sentence"):
        named = {"name": name, "resumed": parent, "a tag that says": "much more than it has to"}
        service.create_lora_training_client("tinker/toy", rank=1, user_metadata=named).result()
    page.set_viewport_size({"width": 1024, "height": 800})
    enter_key(page)
    row = page.locator("#runs tbody tr").filter(has_text="again")
    assert [
        row.get_by_text(text, exact=True).get_attribute("title") for text in ("again", "resumed")
    ][1] == f"resumed={parent}"
    mark, name = (
        page.locator("#runs tr").filter(has_text="sentence").locator(part).bounding_box()
        for part in (".swatch", ".link")
    )
    assert name["y"] <= mark["y"] < name["y"] + name["height"]
    box = page.locator("#runs .scroll")
    assert box.evaluate("one => one.scrollWidth - one.clientWidth") == 0
    page.set_viewport_size({"width": 700, "height": 800})
    places = "cells => cells.map(cell => cell.getBoundingClientRect().left)"
    before = row.locator("td").evaluate_all(places)
    box.evaluate("one => { one.scrollLeft = 1000 }")
    after = row.locator("td").evaluate_all(places)
    assert after[:2] == before[:2]
    assert after[-1] < before[-1]


def test_a_phone_shows_several_runs_at_once(page: Any) -> None:
    """At 390 pixels three runs are in their box together, and the page is at most four windows and
    a quarter long.
    """
    page.set_viewport_size({"width": 390, "height": 844})
    enter_key(page)
    box, last = (
        page.locator("#runs .scroll").bounding_box(),
        page.locator("#runs tbody tr").nth(2).bounding_box(),
    )
    assert last["y"] + last["height"] <= box["y"] + box["height"]
    page.locator(".chart canvas").nth(1).wait_for()
    assert page.evaluate("document.documentElement.scrollHeight") <= 4.25 * 844


def test_only_what_asked_within_a_minute_is_alive(browser: Any, tmp_path: Path) -> None:
    """A session whose process has gone is neither counted nor green, though the server still waits
    for it.
    """
    passed = [0.0]
    state = State(
        ToyEngine, Settings(data_dir=tmp_path), clock=lambda: time.monotonic() + passed[0]
    )
    with serve_in_thread(state) as url:
        service = tinker.ServiceClient(base_url=url, heartbeat_seconds=None)
        service.create_lora_training_client("tinker/toy", rank=1).result()
        page = browser.new_page()
        page.goto(url)
        tile = page.locator(".tile").filter(has_text="sessions alive")
        tile.filter(has_text="1 of 1").wait_for()
        passed[0] = 240.0
        tile.filter(has_text="0 of 1").wait_for()
        assert page.locator("td[data-name='last seen']").get_attribute("class") == "faint"
        page.close()


def test_a_prompt_is_sent_as_a_chat_message(page: Any) -> None:
    """With the box ticked, the prompt goes through the chat template, and the answer is shown like
    any other.
    """
    enter_key(page)
    page.get_by_label("as a chat message").check()
    with page.expect_request("**/v1/chat/completions") as asked:
        page.locator("#playground").get_by_role("button", name="Sample").click()
    assert asked.value.post_data_json["messages"] == [{"role": "user", "content": "The "}]
    page.wait_for_function("() => document.querySelector('#playground pre').textContent !== ''")


def test_a_server_that_has_ended_is_not_said_to_be_seen(page: Any) -> None:
    """When the server no longer answers, the page says so, keeps what it knew, and does not say
    when sessions were seen.
    """
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
    assert page.get_by_label("model 1").locator("option").all_inner_texts()[:2] == [
        "tinker/toy",
        "org/other",
    ]


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
    ground, text = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    light = [sum(map(int, value[4:-1].split(","))) for value in (ground, text)]
    assert (light[0] > light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 400


def test_a_phone_shows_every_column(page: Any) -> None:
    """At 400 pixels each cell of the runs, checkpoints and sessions is in the window, buttons too,
    and nothing scrolls sideways.
    """
    page.set_viewport_size({"width": 400, "height": 800})
    enter_key(page)
    first = page.locator("#runs tbody tr").first
    assert [
        first.get_by_text(text, exact=True).count() for text in ("4", "open", "tinker/toy")
    ] == [1, 1, 1]
    assert page.locator("#checkpoints").get_by_role("button").count() == 6
    beyond = (
        "found => found.filter(one => one.getBoundingClientRect().right > 400).map(one => "
        "one.textContent)"
    )
    assert page.locator("td, button, select").evaluate_all(beyond) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_checkpoints_to_sample_from_begin_with_their_names(page: Any) -> None:
    """The end of a path is what a narrow list shows of it; the whole path is the title."""
    enter_key(page)
    page.locator("#checkpoints tbody tr").filter(has_text="/end").get_by_role(
        "button", name="Sample"
    ).click()
    picker = page.get_by_label("model 1")
    assert picker.locator("option:checked").inner_text() == "end of first try"
    assert picker.get_attribute("title") == picker.input_value()
    assert picker.input_value().endswith("/sampler_weights/end")


def test_a_checkpoint_with_the_name_of_its_run_has_one_name(page: Any, url: str) -> None:
    """The name is not said twice, and an option of sampling that is cleared is not sent."""
    service = tinker.ServiceClient(base_url=url, api_key=KEY)
    training = service.create_lora_training_client(
        base_model="tinker/toy", rank=1, user_metadata={"name": "pig"}
    )
    training.save_weights_for_sampler("pig").result()
    enter_key(page)
    page.get_by_label("model 1").select_option("pig")
    page.get_by_label("max_tokens").fill("")
    with page.expect_request("**/v1/completions") as asked:
        page.locator("#playground").get_by_role("button", name="Sample").click()
    assert asked.value.post_data_json.keys() == {"model", "prompt", "temperature", "seed", "stream"}


def test_the_document_of_the_api_can_be_operated(browser: Any, url: str) -> None:
    """Swagger UI lists the operations of the contract, and asks this server, whose page is a link
    away.
    """
    page = browser.new_page()
    page.goto(f"{url}/docs")
    page.locator("#operations-service-healthz").click()
    page.get_by_role("button", name="Execute").first.click()
    page.locator(".live-responses-table .response-col_status", has_text="200").first.wait_for()
    page.emulate_media(color_scheme="dark")
    style = page.evaluate(
        "[getComputedStyle(document.documentElement).backgroundColor, "
        "getComputedStyle(document.body).filter]"
    )
    assert style == ["rgb(30, 30, 30)", "invert(0.882) hue-rotate(180deg)"]
    page.get_by_role("link", name="server's page").click()
    page.wait_for_url(f"{url}/")
    page.close()
