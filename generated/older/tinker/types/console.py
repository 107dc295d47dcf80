"""A path that older code imports from; made by `python -m codegen generate`."""

from tinker.types.results import (
    checkpoint_url,
    CONSOLE,
    playground_url,
    session_url,
    training_run_url,
)

__all__ = ["CONSOLE", "checkpoint_url", "playground_url", "session_url", "training_run_url"]
