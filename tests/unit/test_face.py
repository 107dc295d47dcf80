"""Reprs of values and clients, accepted arrays, and progress of several futures."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import sys
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
import tinker_wire.models as models

import tinker
from tinker.cli import output as charts
from tinker.observing.progress import FutureProgress


def long_datum(length: int = 4096) -> tinker.Datum:
    inputs: Any = {
        "target_tokens": np.arange(length),
        "weights": np.ones(length),
        "advantages": np.ones(length),
    }
    return tinker.Datum(tinker.ModelInput.from_ints(range(length)), inputs)


def test_the_repr_of_a_long_example_is_short() -> None:
    """A long repr has two lines and the number of tokens; a short one has every token."""
    shown = repr(long_datum())
    assert len(shown) <= 2 * 160
    assert "tokens=[0, 1, 2, 3, ..., 4094, 4095], 4,096 tokens" in shown
    assert "'weights': float32[4096]" in shown
    sample = tinker.SampledSequence(stop_reason="stop", tokens=[1, 2, 3])
    assert (
        repr(sample)
        == "SampledSequence(stop_reason='stop', sequence_id=None, tokens=[1, 2, 3], logprobs=None)"
    )
    assert "tokens=[1, 2, 3], type='encoded_text'" in repr(tinker.ModelInput.from_ints([1, 2, 3]))
    assert "TensorData([1, 1, 1], float32, shape=[3])" in repr(long_datum(3))
    assert "..." not in repr(long_datum(64).model_input)
    assert "float32[64]" not in repr(long_datum(64))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("local://toy", "<ServiceClient local://toy>"),
        ("https://me:hidden@host:8443/api", "<ServiceClient https://host:8443/api>"),
    ],
)
def test_a_service_client_shows_its_server(url: str, shown: str) -> None:
    """The repr shows the address without credentials and without connecting; it shows no key."""
    assert repr(tinker.ServiceClient(base_url=url, api_key="tml-hidden")) == shown


def test_values_are_tables_in_notebooks() -> None:
    """Fields are rows, values of a list too; everything is escaped and secrets are hidden."""
    time = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    checkpoint = models.Checkpoint(
        checkpoint_id="<script>",
        checkpoint_type="training",
        time=time,
        tinker_path="tinker://r/weights/1",
    )
    page = models.CheckpointsListResponse(checkpoints=[checkpoint, checkpoint])._repr_html_()
    assert page.count("&lt;script&gt;") == 2
    assert "<script>" not in page
    assert "<th>tinker_path</th>" in page
    assert "<td>2026-01-01 00:00:00+00:00</td>" in page
    output = tinker.ForwardBackwardOutput(
        loss_fn_output_type="x", loss_fn_outputs=[], metrics={"loss:sum": 1.5}
    )
    assert "loss:sum: 1.5" in output._repr_html_()
    assert "hidden" not in models.AuthTokenResponse(jwt="hidden")._repr_html_()
    assert len(long_datum()._repr_html_()) < 4000


def test_memory_maps_and_masks(tmp_path: Path) -> None:
    """Tokens of a uint16 file and a boolean mask are accepted unchanged, by numpy and by torch."""
    file = tmp_path / "tokens.bin"
    np.arange(60_000, 60_008, dtype=np.uint16).tofile(file)
    tokens = np.memmap(file, np.uint16, "r")
    mask = np.arange(8) % 2 == 0
    inputs: Any = {"target_tokens": tokens, "weights": mask}
    datum = tinker.Datum(tinker.ModelInput.from_ints(tokens), inputs)
    assert datum.model_input.to_ints() == list(range(60_000, 60_008))
    assert (datum.loss_fn_inputs["target_tokens"].dtype, datum.loss_fn_inputs["weights"].dtype) == (
        "int64",
        "float32",
    )
    assert datum.loss_fn_inputs["target_tokens"].tolist() == list(range(60_000, 60_008))
    assert datum.loss_fn_inputs["weights"].tolist() == [1.0, 0.0] * 4
    torch = pytest.importorskip("torch")
    masked = tinker.Datum(
        datum.model_input, {"target_tokens": torch.arange(8), "weights": torch.tensor(mask)}
    )
    assert masked.loss_fn_inputs["weights"].tolist() == [1.0, 0.0] * 4


def futures_of(*values: object) -> list[Future[Any]]:
    futures = [Future[Any]() for _ in values]
    for future, value in zip(futures, values):
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
    return futures


def test_progress_returns_the_results() -> None:
    """The results come in the order of the futures, and the first failure is raised."""
    futures = futures_of(1, 2, 3)
    assert list(tinker.progress(futures)) == tinker.progress(futures).results(5) == [1, 2, 3]
    assert len(tinker.progress(futures)) == 3

    async def collect() -> list[int]:
        return [result async for result in tinker.progress(futures)]

    assert asyncio.run(collect()) == [1, 2, 3]

    async def gather() -> list[Any]:
        return await tinker.progress(futures_of(*range(1000)))

    assert asyncio.run(gather()) == list(range(1000))
    with pytest.raises(KeyError):
        tinker.progress(futures_of(1, KeyError("x"))).results(5)
    with pytest.raises(TimeoutError):
        tinker.progress([Future()]).results(0)


def test_progress_of_coroutines() -> None:
    """`await` and `async for` take coroutines; elsewhere the error names position and way out."""

    async def double(value: int) -> int:
        return 2 * value

    async def run() -> None:
        assert await tinker.progress([double(1), double(2)]) == [2, 4]
        assert [one async for one in tinker.progress([double(1), double(2)])] == [2, 4]

    asyncio.run(run())
    unawaited = double(1)
    mixed = tinker.progress(cast("list[Future[int]]", [*futures_of(1), unawaited]))
    advice = (
        r"futures\[1\] is a coroutine, which only `await` and `async for` can run: pass futures, "
        r"such as of sample\("
    )
    with pytest.raises(TypeError, match=advice):
        mixed.results(5)
    with pytest.raises(TypeError, match=advice):
        list(mixed)
    unawaited.close()
    with pytest.raises(
        TypeError,
        match=r"futures\[1\] must be a future, such as that of sample\(\.\.\.\), got int$",
    ):
        tinker.progress(cast("list[Future[int]]", [*futures_of(1), 2]))


def test_coroutines_end_with_the_loop_that_is_left() -> None:
    """A loop over coroutines that is left early leaves none of them running."""
    cancelled: list[int] = []

    async def wait(value: int) -> int:
        try:
            return value if value == 1 else await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(value)
            raise

    async def run() -> None:
        async with contextlib.aclosing(aiter(tinker.progress([wait(1), wait(2)]))) as results:
            assert await anext(results) == 1
        await asyncio.gather(
            *asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True
        )

    asyncio.run(run())
    assert cancelled == [2]


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal gets a bar with description and count, and a pipe gets nothing."""
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    screen, pipe = Screen(), io.StringIO()
    assert FutureProgress[int](futures_of(1, 2), "[Sampling]", screen).results(5) == [1, 2]
    assert "[Sampling]" in screen.getvalue()
    assert "2/2" in screen.getvalue()
    assert list(FutureProgress[int](futures_of(1, 2), "Sampling", pipe)) == [1, 2]
    assert pipe.getvalue() == ""


def test_progress_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook tqdm draws the bar; where it is not installed, rich does on a terminal."""
    pytest.importorskip("tqdm")
    notebook, shell, screen = (
        ModuleType("IPython"),
        type("Shell", (), {"__module__": "ipykernel.zmqshell"})(),
        Screen(),
    )
    monkeypatch.setattr(notebook, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    assert FutureProgress[int](futures_of(1, 2), "Sampling", screen).results(5) == [1, 2]
    assert "Sampling: 100%" in capsys.readouterr().err
    assert screen.getvalue() == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert FutureProgress[int](futures_of(1, 2), "Sampling", screen).results(5) == [1, 2]
    assert "2/2" in screen.getvalue()


def test_charts() -> None:
    """Curves stay within their frame, names are escaped, and only finite values are drawn."""
    curve = [(step, 4.0 / step) for step in range(1, 50)] + [(50, float("nan"))]
    text = charts.draw_text({"loss": curve}, width=40, height=5)
    assert max(map(len, text.splitlines())) <= 40
    assert len(text.splitlines()) == 6
    assert charts.draw_text({"loss": []}) == "(nothing to draw)"
    drawn = charts.draw_svg({"<a>": curve, "b": [(1, 1.0)]}, title="<t>")
    assert "&lt;a&gt;" in drawn
    assert "<a>" not in drawn
    assert "nan" not in drawn
    assert "<svg" in charts.draw_svg({})


def test_axes_end_where_the_values_do() -> None:
    """The ends of an axis are the least and the largest value."""
    losses = [(1, 5.5), (2, 3.0), (3, 0.25)]
    rows = charts.draw_text({"loss": losses}, width=40, height=5).splitlines()
    assert [rows[0].split()[0], rows[4].split()[0]] == ["5.5", "0.25"]
    drawn = charts.draw_svg({"loss": losses})
    assert ">5.5<" in drawn
    assert ">0.25<" in drawn
