"""Older paths: every official module that has types exists here, with the types it exports."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tinker.types
from tinker.lib.retry_handler import RetryConfig, is_retryable_status_code


def made_modules() -> dict[str, ModuleType]:
    """Return the modules that `python -m codegen generate` creates, by their names."""
    names = [
        module.name for module in pkgutil.walk_packages(tinker.types.__path__, "tinker.types.")
    ]
    modules = {name: importlib.import_module(name) for name in names}
    return {
        name: module
        for name, module in modules.items()
        if "older code imports from; made by" in str(module.__doc__)
    }


def test_each_module_offers_what_is_exported() -> None:
    """An older module exports the same classes, so `isinstance` and pickles agree."""
    modules = made_modules()
    assert len(modules) > 100
    exported = {
        (path, name) for path, module in modules.items() for name in getattr(module, "__all__", ())
    }
    other = {(path, name) for path, name in exported if name not in tinker.types.__all__}
    assert {name for _, name in other} == {
        "CONSOLE",
        "LIST_DTYPES",
        "LossFnInputValue",
        "MASK_LOGPROB",
        "NamedTensors",
        "SCHEME",
        "SPARSIFIED",
        "TopkPromptLogprobs",
        "checkpoint_url",
        "instant",
        "playground_url",
        "session_url",
        "to_tensor_data",
        "topk_to_lists",
        "training_run_url",
    }
    exported -= other
    assert {
        (path, name)
        for path, name in exported
        if getattr(modules[path], name) is not getattr(tinker.types, name)
    } == set()


@pytest.mark.parametrize("module", ["service_client", "sampling_client", "training_client"])
def test_retry_settings_are_where_scripts_import_them_from(module: str) -> None:
    """RetryConfig is the same class under every path."""
    assert (
        importlib.import_module(f"tinker.lib.public_interfaces.{module}").RetryConfig is RetryConfig
    )


@pytest.mark.parametrize(
    "line",
    [
        "import tinker.types.shared.untyped_api_future",
        "import tinker.types.loss_fn_type",
        "import tinker.types.checkpoint",
        "import tinker.lib.public_interfaces.training_client",
        "import tinker.lib.telemetry",
        "import tinker; assert tinker.types.checkpoint.Checkpoint is tinker.types.Checkpoint",
    ],
)
def test_a_first_import_of_any_path_works(line: str) -> None:
    """In a fresh process no order of imports is circular, and `import tinker` is enough to reach a
    module of types, as in the official client.
    """
    subprocess.run([sys.executable, "-c", line], check=True, timeout=60)


def test_a_patch_of_the_official_client_is_told_that_it_has_no_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A package that imports the internals which it changes causes a warning."""
    monkeypatch.setitem(sys.modules, "twinkle_client", ModuleType("twinkle_client"))
    effect = r"init_tinker_client\(\) has no effect on this client.*default_headers_overrides"
    with (
        pytest.warns(UserWarning, match=effect),
        pytest.raises(ImportError, match="InternalClientHolder"),
    ):
        from tinker.lib.internal_client_holder import InternalClientHolder  # type: ignore[attr-defined] # noqa: F401


@pytest.mark.parametrize("name", ["InternalClientHolder", "ClientConnectionPoolType", "_private"])
def test_a_program_that_loads_no_such_package_is_told_nothing_about_it(name: str) -> None:
    """A guarded import of an internal name is an ImportError, without foreign advice."""
    assert "twinkle_client" not in sys.modules
    with (
        warnings.catch_warnings(record=True) as told,
        pytest.raises(ImportError, match=f"cannot import name '{name}'"),
    ):
        exec(f"from tinker.lib.internal_client_holder import {name}")
    assert not told


def test_the_older_name_of_the_table_of_top_tokens() -> None:
    """Code for 0.23 makes the same table under the path and the name of that version."""
    from tinker.types.topk_prompt_logprobs import TopkPromptLogprobs

    ids, logprobs = np.array([[3]], np.int32), np.array([[-0.5]], np.float32)
    assert TopkPromptLogprobs(
        token_ids=ids, logprobs=logprobs
    ) == tinker.types.TopkLogprobs.from_rows([[(3, -0.5)]])


@pytest.mark.parametrize(
    ("status", "again"),
    [(200, False), (400, False), (404, False), (408, True), (429, True), (503, True)],
)
def test_statuses_that_are_retried(status: int, again: bool) -> None:
    """The older helper returns what this client's retries do."""
    assert is_retryable_status_code(status) is again


def test_user_errors() -> None:
    """A user error is what the server reports as one, and any exception caused by one."""
    from tinker.lib.telemetry import is_user_error

    failed = [tinker.RequestFailedError("m", "r", category) for category in ("user", "server")]
    assert [is_user_error(error) for error in failed] == [True, False]
    caused = RuntimeError("of the script")
    caused.__cause__ = failed[0]
    assert is_user_error(caused)


def test_metrics_of_several_results_are_reduced_by_their_names() -> None:
    """Outputs are in order, and every reduction may be called without weights."""
    from tinker.lib import chunked_fwdbwd_helpers as helpers

    def output(count: int, **metrics: float) -> tinker.ForwardBackwardOutput:
        outputs: list[Any] = [{}] * count
        return tinker.ForwardBackwardOutput(
            "x", outputs, {name.replace("_", ":", 1): value for name, value in metrics.items()}
        )

    combined = helpers.combine_fwd_bwd_output_results(
        [output(1, a_mean=1.0, b_sum=2.0), output(3, a_mean=5.0, b_sum=3.0)]
    )
    assert combined.metrics == {"a:mean": 4.0, "b:sum": 5.0}
    assert len(combined.loss_fn_outputs) == 4
    assert helpers.combine_fwd_bwd_output_results([]) == tinker.ForwardBackwardOutput("", [], {})
    reduced = {
        name: reduce([1.0, 5.0])
        for name, reduce in helpers.REDUCE_MAP.items()
        if not name.startswith("hash")
    }
    assert reduced == {
        "sum": 6.0,
        "mean": 3.0,
        "min": 1.0,
        "max": 5.0,
        "slack": 2.0,
        "unique": [1.0, 5.0],
    }
    assert helpers.REDUCE_MAP["mean"]([1.0, 5.0], weights=[1, 3]) == 4.0


def test_a_tokenizer_needs_the_name_of_a_model() -> None:
    """A value that is not a name is refused by the name of the argument."""
    for wrong in ("", None):
        with pytest.raises(ValueError, match="model_name must be the name of a model"):
            tinker.get_tokenizer(wrong)  # type: ignore[arg-type]
    assert inspect.signature(tinker.get_tokenizer).parameters.keys() == {"model_name"}
