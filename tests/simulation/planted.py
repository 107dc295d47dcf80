"""Faults for the simulation to find: the file, the text, the text with the fault."""

from __future__ import annotations

PLANTED: dict[str, tuple[str, str, str]] = {
    "a number is reused too early": (
        "tinker/_training/order.py",
        "        if fate is retry.Fate.UNSEEN:\n",
        "        if fate is not retry.Fate.REFUSED:\n",
    ),
    "a receipt is noted too late": (
        "tinker/_training/order.py",
        "                self.received = self._now()\n",
        "                self.received = self._now() + 2\n",
    ),
    "a result is not held against its data": (
        "tinker/_training/losses.py",
        "        if (count := len(output.loss_fn_outputs)) != len(chunk.data):\n",
        "        if (count := len(output.loss_fn_outputs)) > len(chunk.data):\n",
    ),
    "the journal is written after the answer": (
        "tinker/local/handlers/common.py",
        (
            "            write_down(state, call, model.model_id, free, request_id=request_id, "
            "number=number)\n"
        ),
        "            state.submit_task(\n"
        "                lambda: write_down(state, call, model.model_id, free, "
        "request_id=request_id, number=number)\n"
        "            )\n",
    ),
}
