"""Stand-ins for Ray, verl and vLLM, which trinity-rft imports and this environment has not; import
this before it.

The names that it does not use with this SDK are classes of which no object can be made. Ray's actor
between its two ends, the synchronizer, is a plain object that keeps what it is given.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Never


class Absent:
    """A class of a package that is not here."""

    def __class_getitem__(cls, item: object) -> type[Absent]:
        return cls

    def __new__(cls, *args: object, **options: object) -> Never:
        raise NotImplementedError("not in this environment")


class AbsentModule(ModuleType):
    """A module that is not here."""

    def __getattr__(self, name: str) -> type[Absent]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent


async def get_kept() -> tuple[str, int]:
    return kept[-1]


kept: list[tuple[str, int]] = []  # paths of weights, each with its step
synchronizer = SimpleNamespace(
    set_model_state_dict=SimpleNamespace(remote=lambda *given: kept.append(given)),
    get_model_state_dict=SimpleNamespace(remote=get_kept),
)
CHAT = ("vllm.entrypoints", "vllm.entrypoints.chat_utils")
sys.modules |= {
    name: AbsentModule(name)
    for name in ("ray", "ray.actor", "verl", "vllm", "vllm.config", "vllm.inputs", *CHAT)
}
ray: Any = sys.modules["ray"]
ray.actor, ray.get = sys.modules["ray.actor"], lambda value: value
ray.get_actor = lambda name, namespace: synchronizer
ray.get_runtime_context = lambda: SimpleNamespace(namespace="")
