"""Each fault of `support/source_faults.py`, in a copy of the project: `nox -s contract`, as it
takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.copies import ProjectCopy
from support.source_faults import SOURCE_FAULTS


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProjectCopy]:
    """Yield a copy of the project."""
    copied = ProjectCopy(tmp_path_factory.mktemp("faulty"))
    yield copied
    copied.close()


@pytest.mark.parametrize("name", SOURCE_FAULTS)
def test_a_fault_in_the_sources_is_found(project: ProjectCopy, name: str) -> None:
    """In a copy of the project with the fault, the test that is named for it fails."""
    file, sound, broken, test = SOURCE_FAULTS[name]
    with project.changed(file, sound, broken):
        status, words = project.run_tests(f"tests/{test}")
    assert status == pytest.ExitCode.TESTS_FAILED, words[-2000:]


def test_the_sources_have_none_of_them(project: ProjectCopy) -> None:
    """In a copy without a fault all of these tests pass."""
    status, words = project.run_tests(
        *sorted({f"tests/{test}" for *_, test in SOURCE_FAULTS.values()})
    )
    assert status == pytest.ExitCode.OK, words[-2000:]
