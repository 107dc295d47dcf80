"""What to attach to a report of a defect: every exchange around the failure, without keys and
signed addresses.

python examples/bug_report.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import tinker
from tinker.observing import log_exchanges

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
KEY = os.environ.get("TINKER_API_KEY", "tml-not-for-others")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "exchanges.jsonl"
        with log_exchanges(file), tinker.ServiceClient(base_url=BASE_URL, api_key=KEY) as service:
            model = service.get_server_capabilities().supported_models[0].model_name
            assert model is not None
            training = service.create_lora_training_client(base_model=model, rank=8)
            tokens = tinker.ModelInput.from_ints([1, 10**6])  # the second one is in no vocabulary
            datum = tinker.Datum(tokens, {"target_tokens": [2, 3], "weights": [1.0, 1.0]})
            error = training.forward_backward([datum], "cross_entropy").exception()
            print(f"what failed: {type(error).__name__}: {error}")
        text = file.read_text()

    for line in text.splitlines():
        one = json.loads(line)
        print(
            f"{one['method']:4} {one['path']:32} {one['status']} {one['request_nbytes']:5} B -> "
            f"{one['response_nbytes']:5} B"
        )
    assert isinstance(error, tinker.TinkerError)
    assert "forward_backward" in text
    assert KEY not in text


if __name__ == "__main__":
    main()
