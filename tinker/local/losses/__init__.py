"""Losses that a client traced: checked when they come, evaluated node by node with torch, never executed as code."""

from __future__ import annotations

from tinker.local.losses.checks import check_graph
from tinker.local.losses.graph import LossGraph

__all__ = ["LossGraph", "check_graph"]
