"""``tinker model``: what can be trained and sampled."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup


@click.group(cls=LazyGroup, entries={"list": Entry("tinker.cli.model_list:list_models", "List the models.")})
def model() -> None:
    """The models that the server offers."""
