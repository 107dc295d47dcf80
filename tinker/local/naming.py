"""The names of the loaded model and of its tokenizer, and which clients may see them.

A model that was loaded from a directory is named by the last part of its path. Clients may also name it by the path itself,
but only clients on this machine see the path. Others could not use it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tinker.local.call import APICall
from tinker.local.engines import PACKAGED_FOLDER, Engine, explain_absence
from tinker.local.errors import APIProblem
from tinker.local.state import State

PACKAGED_TOKENIZER = "tinker/babble"  # every client of this package has it
MAX_LOGGED_NAMES = 1000  # names that are not the model's; those beyond are not logged
log: logging.Logger = logging.getLogger("tinker.local")


def check_base_model(state: State, engine: Engine, name: str) -> str:
    """Return the model's name here for a client's ``name``. Raises APIProblem 400 for one that is not offered."""
    if name == engine.base_model or name in engine.aliases:
        return engine.base_model
    if not state.settings.any_base_model:
        raise APIProblem(
            400, f"base model {name!r} is not offered; this server has {engine.base_model!r}{explain_absence(name)}"
        )
    if name not in state.other_model_names and len(state.other_model_names) < MAX_LOGGED_NAMES:
        state.other_model_names.add(name)
        log.warning("a client asks for %r: %s", name, single_model_warning(engine))
    return name


def single_model_warning(engine: Engine) -> str:
    """Return a warning to users of a server that serves one model under every name."""
    return (
        f"this server serves {engine.base_model!r} under every name; use the tokenizer that get_tokenizer() gives, "
        "as token ids of another model's tokenizer mean nothing here or do not exist"
    )


def tokenizer_for(call: APICall, engine: Engine) -> str:
    """Return the name by which this client can load the tokenizer, or a text that says that it cannot."""
    name = engine.tokenizer_id
    if not Path(name).is_dir():
        return name
    if call.is_local_client and ":" not in name:  # clients take what follows a colon for a revision
        return name
    if Path(name) == PACKAGED_FOLDER:
        return PACKAGED_TOKENIZER
    return f"{engine.base_model.replace(':', '_')} (a folder of the server)"


def visible_name(call: APICall, name: str, requested_name: str | None) -> str:
    """Return the base model's name for an answer to a client that asked for it under another name."""
    return requested_name if requested_name is not None and call.is_local_client else name
