"""Training that survives its server: ``tinker serve`` is killed twice, and the weights are those of
an undisturbed run.

python examples/recovery.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

import tinker
from tinker.recovery import RecoveringTrainingClient, Recovery, RecoveryPolicy

STEPS, SAVE_EVERY = 30, 10
PARAMS = tinker.AdamParams(learning_rate=0.02)
TEXT = b"the quick brown fox jumps over the lazy dog"


class Server:
    """A ``tinker serve`` on one folder and one port, which can be killed and started again."""

    def __init__(self, folder: str) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tinker.cli",
            "serve",
            "--engine",
            "toy",
            "--data",
            folder,
        ]
        self.url = self.start("0")

    def start(self, port: str) -> str:
        """Start it; the address where it listens."""
        command = [*self._command, "--port", port]
        self._process = subprocess.Popen(  # noqa: S603  (the command is our own)
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        return next(
            word for word in self._process.stdout.readline().split() if word.startswith("http")
        )

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.communicate()

    def restart(self) -> None:
        """Kill it, and start another one in its place."""
        self.kill()
        self.start(self.url.rpartition(":")[2])


def datum(step: int) -> tinker.Datum:
    """The data of a step."""
    tokens = list(TEXT[step % 20 : step % 20 + 12])
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )


def take_step(client: tinker.TrainingClient, step: int) -> float:
    """Train on one datum, and return its loss before that."""
    loss = client.forward_backward([datum(step)], "cross_entropy")
    client.optim_step(PARAMS).result(timeout=60)
    return loss.result(timeout=60).loss


def probe(client: tinker.TrainingClient) -> float:
    """Return a number that depends on every weight that was trained."""
    return (
        client.forward([datum(step) for step in range(20)], "cross_entropy").result(timeout=60).loss
    )


def tell(recovery: Recovery) -> None:
    """Say what was lost."""
    path = None if recovery.save is None else recovery.save.path
    print(
        f"the run was lost ({type(recovery.error).__name__}); continuing "
        f"with step {recovery.step} from {path}"
    )


def main() -> None:
    """Train through two kills, and once without any."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        try:
            service = tinker.ServiceClient(base_url=server.url)
            training = service.create_lora_training_client("tinker/toy", rank=4, seed=1)
            client = RecoveringTrainingClient(
                training, RecoveryPolicy(backoff_seconds=1), on_recovery=tell
            )
            kills = [7, 22]
            for step in client.steps(STEPS, save_every=SAVE_EVERY):
                with step:
                    if step in kills:
                        kills.remove(step)
                        server.restart()
                    take_step(client, step)
            survived = probe(client)
        finally:
            server.kill()
    undisturbed = tinker.ServiceClient(base_url="local://toy").create_lora_training_client(
        "tinker/toy", rank=4, seed=1
    )
    for step in range(STEPS):
        take_step(undisturbed, step)
    print(f"loss after {STEPS} steps: {survived:.9f}, and {probe(undisturbed):.9f} without kills")
    assert survived == probe(undisturbed)


if __name__ == "__main__":
    main()
