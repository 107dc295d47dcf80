"""The names of the loaded model and of its tokenizer, and which clients may see them.

A model that was loaded from a directory is named by the last part of its path. Clients may also
name it by the path itself, but only clients on this machine see the path. Others could not use it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tinker.local.call import APICall
from tinker.local.engines.opening import PACKAGED_FOLDER, TOY_MODEL, explain_absence
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.state import State
from tinker_records import find_closest

PACKAGED_TOKENIZER = "tinker/babble"  # every client of this package has it
MAX_LOGGED_NAMES = 1000  # names that are not the model's; those beyond are not logged
log: logging.Logger = logging.getLogger("tinker.local")


def choose_engine_for(state: State, engines: Sequence[Engine], name: str) -> tuple[Engine, str]:
    """Return the engine for a client's ``name``, and the model's name here. APIProblem 400 for one
    that is not offered.
    """
    for engine in engines:
        if name == engine.base_model or name in engine.aliases:
            return engine, engine.base_model
    if not state.settings.any_base_model:
        offered = f"base model {name!r} is not offered; this server has {join_names(engines)}"
        raise APIProblem(
            400,
            offered + (explain_absence(name) or _suggest(name, engines)),
            code="base_model_not_offered",
        )
    warning = other_names_warning(engines)
    if (
        warning
        and name not in state.other_model_names
        and len(state.other_model_names) < MAX_LOGGED_NAMES
    ):
        state.other_model_names.add(name)
        log.warning("a client requested the model %r: %s", name, warning)
    return engines[0], name


def _suggest(name: str, engines: Sequence[Engine]) -> str:
    """Return the end of a refusal: the name that was probably meant, or how to serve the model of
    another owner.
    """
    names = [engine.base_model for engine in engines]
    if len(names) > 1 and (closest := find_closest(name, names)):
        return f"; did you mean {closest!r}?"
    owner, slash, rest = name.partition("/")
    if not (owner and slash) or "/" in rest or owner in {one.partition("/")[0] for one in names}:
        return ""
    return f"; to serve it: tinker serve --model {name}, or base_url='local://{name}'"


def find_engine(engines: Sequence[Engine], engine_model: str) -> Engine:
    """Return the engine that goes by this name. Raises EngineError if there is none."""
    for engine in engines:
        if engine.base_model == engine_model:
            return engine
    raise EngineError(f"this server has {join_names(engines)}, not {engine_model!r}")


def join_names(engines: Sequence[Engine]) -> str:
    """Return the names of the models as a refusal lists them."""
    return ", ".join(repr(engine.base_model) for engine in engines)


def other_names_warning(engines: Sequence[Engine]) -> str | None:
    """Return the warning of a server that serves its model under any name; None for the toy, whose
    text means nothing.
    """
    if engines[0].base_model == TOY_MODEL:
        return None
    names = "every name" if len(engines) == 1 else f"every name but {join_names(engines[1:])}"
    return (
        f"this server serves {engines[0].base_model!r} under {names}; use the tokenizer that "
        "get_tokenizer() gives, "
        "as token ids of another model's tokenizer mean nothing here or do not exist"
    )


def tokenizer_for(call: APICall, engine: Engine) -> str:
    """Return the name by which this client can load the tokenizer, or a text that says that it
    cannot.
    """
    name = engine.tokenizer_id
    if not Path(name).is_dir():
        return name
    if call.is_local_client and ":" not in name:  # clients take what follows a colon for a revision
        return name
    if Path(name) == PACKAGED_FOLDER:
        return PACKAGED_TOKENIZER
    return f"{engine.base_model.replace(':', '_')} (a folder of the server)"


def visible_name(call: APICall, name: str, requested_name: str | None) -> str:
    """Return the base model's name for an answer to a client that asked for it
    under another name.
    """
    return requested_name if requested_name is not None and call.is_local_client else name
