"""What servers answer, as JSON: the values that a test does not care about are filled in."""

from __future__ import annotations


def training_run(run_id: str, **fields: object) -> dict[str, object]:
    """Return the description of a run."""
    return {
        "training_run_id": run_id,
        "base_model": "tinker/toy",
        "model_owner": "me",
        "is_lora": True,
        "last_request_time": "2026-01-01T00:00:00Z",
        **fields,
    }
