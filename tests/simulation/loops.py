"""Training loops that recover their run when the server loses it, judged by the checkpoint that
they end with.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import tinker
from simulation.calls import SHARES, Violation, datum
from simulation.effects import LEARNING_RATE, list_tags, saved_weights_differ
from tinker.recovery import RecoveringTrainingClient, Recovery, RecoveryPolicy

if TYPE_CHECKING:
    from simulation.world import World


class Loop:
    """A loop over ``count`` steps, as a task."""

    def __init__(
        self, world: World, service: tinker.ServiceClient, name: str, count: int, save_every: int
    ) -> None:
        self._world, self.name, self._count, self._save_every = world, name, count, save_every
        training = service.create_lora_training_client("tinker/toy", rank=1, seed=7)
        self._client = RecoveringTrainingClient(
            training, RecoveryPolicy(attempts=5), on_recovery=self._note
        )
        self._runs: list[str] = []
        self.has_all_steps = False
        self.task = asyncio.create_task(self._run())

    def _note(self, recovery: Recovery) -> None:
        self._runs.append(recovery.new_run_id)
        self._world.reached[
            "a loop continues from a save" if recovery.save else "a loop begins anew"
        ] += 1

    async def _run(self) -> None:
        try:
            await self._client._ready.result_async()
            self._runs.append(self._client.model_id)
            async for step in self._client.steps(
                self._count, save_every=self._save_every, name=self.name
            ):
                async with step:
                    await self._take(int(step))
        except tinker.TinkerError as error:
            self._world.reached[f"a loop ends with {type(error).__name__}"] += 1
        else:
            self._world.reached["a loop ends"] += 1
            self.has_all_steps = True

    async def _take(self, step: int) -> None:
        tag, draw = SHARES * (step + 1), self._world.loop.random
        self._client.forward_backward([datum(tag)], "cross_entropy")
        done = self._client.optim_step(tinker.AdamParams(learning_rate=tag * LEARNING_RATE))
        if draw.random() < 0.5:
            await done.result_async()
        else:
            await asyncio.sleep(draw.random() ** 4 * 30.0)

    def judge(self) -> None:
        """The checkpoint at the end has the weights of all steps, each once and in order, whatever
        was lost.
        """
        state = self._world.server.state
        if not self.has_all_steps or state is None:
            return
        folder = state.checkpoints.find(self._client.saves[-1].path, "weights")[1]
        found = list_tags(folder)
        wanted = [(kind, SHARES * (step + 1)) for step in range(self._count) for kind in "GS"]
        if found != wanted:
            raise Violation(
                f"a recovered loop has each step once and in order: {self.name} has {found}"
            )
        if saved_weights_differ(self._world.effects, self._runs, folder):
            raise Violation(
                "a recovered loop has the weights of one that nothing "
                f"interrupts: {self.name} has others"
            )
