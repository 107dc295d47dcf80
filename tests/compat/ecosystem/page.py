"""The text of `docs/ecosystem.md` and of the terminal about a run, and the differences without an
explanation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

HEAD = """# Packages that use the SDK

These packages use the official SDK and run unchanged with this client. `nox -s compat -- ecosystem` installs each of them in two environments: one
with the official SDK that it was written for, and one with this client. It then runs the same steps in both, against the local server: the
package's own tests, if its source distribution contains some, and the calls that its users make. The command writes this page.

"""
PINS = """
## Pins

`pip list` shows this client as `0.38.0+open.1.0.0`, which satisfies `tinker`, `tinker>=0.25` and `tinker==0.38.0`. Most packages that require
an older version work with this one as well, but installers do not know that. With uv, override the requirement:

```text
echo "tinker @ file:///path/to/tinker-0.38.0+open.1.0.0-py3-none-any.whl" > overrides.txt
uv pip install --overrides overrides.txt "openpipe-art[tinker]"
```

pip has no overrides. Install the package with the version that it requires, then put this client in its place; `pip check` goes on to name
the conflict:

```text
pip install "openpipe-art[tinker]"
pip install --force-reinstall --no-deps ./tinker-0.38.0+open.1.0.0-py3-none-any.whl
```

[Installation](installation.md#keep-this-client-when-other-packages-require-tinker) says how to write this in a project. For each package,
uv was asked to resolve it with that override and without.

| package | requires | uv with the override | what was tried |
|---|---|---|---|
"""
#: Packages that are not run here, as those of packages.toml: what they require, and what was tried.
NOT_RUN = (
    (
        "openpipe-art 0.5.23",
        "tinker<0.35,>=0.34.0",
        "this client",
        "its 13 names exist; it needs Python 3.12 and was not run",
    ),
    (
        "SkyRL 0.4.0",
        "tinker<0.26.0,>=0.25.0",
        "this client",
        "its server and its tests, [on our codec](contract/codec.md#what-was-tried)",
    ),
    (
        "TuFT 0.2.2",
        "tinker<0.26,>=0.25",
        "this client",
        "its [server](servers.md#tested-servers) and its tests",
    ),
    (
        "twinkle-kit 0.5.1",
        "tinker==0.16.1",
        "this client",
        (
            "`init_tinker_client()` has no effect: a warning and `tinker doctor` say what to pass "
            "to `ServiceClient` instead"
        ),
    ),
    (
        "mindlab-toolkit 0.2.0",
        "tinker==0.22.0",
        "this client",
        (
            "does not import, because it changes the official client's check of keys; use "
            "`ServiceClient`, which accepts keys in any format"
        ),
    ),
)
#: Of packages.toml, and why uv found no client.
UNRESOLVED = {
    **dict.fromkeys(
        ("harbor", "tinker-cookbook"),
        "no solution, with the override or without it: the tml-renderers that it "
        "requires is not on the index",
    ),
    "tviz": "none is needed",
}
FOOT = """
The training package of Fireworks' SDK, which requires `tinker==0.23.0`, uses more private names of the official client than any other
package that was found: it replaces methods of `TrainingClient` and of the futures behind it. It imports neither with this client nor with
the official 0.38.0.

## Run it yourself

```sh
python -m nox -s compat -- ecosystem  # all packages
python -m nox -s compat -- ecosystem tviz  # one; the page keeps the other results
```

The runs use a CPU build of PyTorch and no model hub. The local server serves the small packaged model under every name. A regular test,
`tests/compat/test_names_used.py`, checks that this client has every name that these packages use.
"""


def table(results: dict[str, Any]) -> str:
    """One row for each package."""
    rows = [
        "| package | official client | passed with it | passed with this client | differences |",
        "|---|---|--:|--:|---|",
    ]
    for name, result in results.items():
        official, ours = (count(result["steps"][client]) for client in ("official", "ours"))
        differ = len(different(result))
        rows.append(
            f"| {title(name, result)} | {result['official'].partition('==')[2]} | {official} | "
            f"{ours} | {differ or 'none'} |"
        )
    return "\n".join(rows)


def title(name: str, result: dict[str, Any]) -> str:
    """Return the package with its version."""
    return f"{name.partition(' ')[0]} {result['version']}"


def count(steps: dict[str, Any]) -> str:
    """How many steps passed, of how many."""
    return f"{sum(step['passed'] for step in steps.values())} of {len(steps)}"


def passed(result: dict[str, Any], client: str, step: str) -> bool:
    """Whether a step ran with a client and passed."""
    return bool(result["steps"][client].get(step, {}).get("passed"))


def all_steps(result: dict[str, Any]) -> list[str]:
    """Return the steps of either client, in the order of the run."""
    return list(dict.fromkeys([*result["steps"]["official"], *result["steps"]["ours"]]))


def different(result: dict[str, Any]) -> list[str]:
    """Return the steps that one client passed and the other did not."""
    return [
        step
        for step in all_steps(result)
        if passed(result, "official", step) != passed(result, "ours", step)
    ]


def fail_with_both(result: dict[str, Any]) -> list[str]:
    """Return the steps that no client passed."""
    return [
        step
        for step in all_steps(result)
        if not passed(result, "official", step) and not passed(result, "ours", step)
    ]


def reason(result: dict[str, Any], kind: str, step: str) -> str | None:
    """Why a step differs or fails, where packages.toml says so."""
    listed = result.get(kind, [])
    return next(
        (one["why"] for one in listed if any(re.search(pattern, step) for pattern in one["steps"])),
        None,
    )


def problems(name: str, result: dict[str, Any]) -> Iterator[str]:
    """Yield what needs a repair or a reason, and reasons that nothing needs."""
    found = {"differences": different(result), "fails_with_both": fail_with_both(result)}
    if not all_steps(result):
        yield f"{name}: nothing ran"
    for kind, steps in found.items():
        for step in steps:
            if reason(result, kind, step) is None:
                yield f"{name}: {step}: no reason in {kind}: {why(result, step)}"
        for one in result.get(kind, []):
            idle = [
                pattern
                for pattern in one["steps"]
                if not any(re.search(pattern, step) for step in steps)
            ]
            yield from (f"{name}: {kind}: nothing is like {pattern!r} any more" for pattern in idle)


def why(result: dict[str, Any], step: str) -> str:
    """Return the output of the failing clients."""
    said = (
        result["steps"][client].get(step, {"why": "did not run"})["why"]
        for client in ("official", "ours")
    )
    return " / ".join(text[-600:] for text in said if text)


def whole(results: dict[str, Any]) -> str:
    """Return the page."""
    return (
        HEAD
        + table(results)
        + "\n"
        + "".join(section(*one) for one in results.items())
        + PINS
        + pins(results)
        + FOOT
    )


def pins(results: dict[str, Any]) -> str:
    """Return the rows of what each package requires."""
    run = (
        (
            title(name, result),
            result["requires"],
            UNRESOLVED.get(name, "this client"),
            "its steps, as above",
        )
        for name, result in results.items()
    )
    rows = [
        (title, f"`{required}`" if required else "nothing", *rest)
        for title, required, *rest in (*run, *NOT_RUN)
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def section(name: str, result: dict[str, Any]) -> str:
    """Describe one package, the steps that ran, and those with different results."""
    own = [step for step in all_steps(result) if "." in step]
    ran = [step for step in all_steps(result) if "." not in step]
    parts = [f"{len(own)} of its own tests"] * bool(own) + [", ".join(ran)] * bool(ran)
    lines = [f"\n## {title(name, result)}\n", f"{result['what']}. Run: {'; '.join(parts)}.\n"]
    lines += [f"- {row}" for row in explained(result)]
    return "\n".join(lines) + "\n"


def explained(result: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each reason, with its steps."""
    for step in different(result):
        who = "the official client" if passed(result, "official", step) else "this client"
        yield (
            f"`{step}` passes only with {who}: "
            f"{reason(result, 'differences', step) or 'not explained'}."
        )
    for one in result.get("fails_with_both", []):
        steps = [
            step
            for step in fail_with_both(result)
            if any(re.search(pattern, step) for pattern in one["steps"])
        ]
        yield (
            f"{', '.join(f'`{step}`' for step in steps)}: passes with neither client: {one['why']}."
        )
