#!/usr/bin/env python3
"""Write down the public surface of the importable `tinker` package, and how it behaves offline.

    python -P introspect.py OUT.json

compare.py reads the file, check.py holds ours against the official one. Nothing outside this
machine is asked, and no words of the package are kept. The groups:

  groups    of each public module, every exported name: its kind, bases, fields, methods, ...
  private   the same of names in other modules that the documentation, the cookbook or the tests of
            the official client import
  paths     every module of the package: its public names
  package   extras, console scripts and py.typed of the distribution
  cli       the commands and their parameters
  cli_exit_codes  how commands end that need no server
  probes    small programs: equality, hashes, pickles, copies, refused values, ...
  arguments which forms of each argument are taken (dict, numpy, tensor, str, ...), of types and of
            the clients' methods, which talk to a stub of a server on loopback

What is reached under several names is described once, under the first; later ones refer to it.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import dataclasses
import enum
import functools
import http.server
import importlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import logging
import os
import pickle
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types as python_types
import typing
import warnings
from concurrent.futures import Future

import httpx
import numpy as np
import pydantic
import pydantic_core

import tinker
from tinker import types

warnings.simplefilter("ignore")

PKG, WIRE = "tinker", "tinker_wire"
OWN_PACKAGES = (PKG, WIRE, "tinker_records")
IS_OURS = importlib.util.find_spec(WIRE) is not None
HAS_TORCH = importlib.util.find_spec("torch") is not None

#: The modules whose exported names are described.
GROUPS = (
    "tinker",
    "tinker.types",
    "tinker.auth",
    "tinker.resources",
    "tinker.lib.public_interfaces",
)
#: Names that other people's code imports from other modules; None stands for every public one.
PRIVATE: dict[str, str | None] = {
    "tinker._version": "__version__ __title__",
    "tinker._client": "AsyncTinker RequestOptions Timeout",
    "tinker._exceptions": None,
    "tinker._models": "BaseModel StrictBase",
    "tinker._types": "NOT_GIVEN NotGiven NoneType Omit",
    "tinker._constants": None,
    "tinker._compat": "PYDANTIC_V2 ConfigDict model_dump model_copy",
    "tinker.lib.public_interfaces.api_future": "APIFuture AwaitableConcurrentFuture",
    "tinker.lib.public_interfaces.rest_client": "RestClient",
    "tinker.lib.public_interfaces.service_client": "ServiceClient",
    "tinker.lib.public_interfaces.sampling_client": "SamplingClient",
    "tinker.lib.public_interfaces.training_client": "TrainingClient CustomLossFnV1",
    "tinker.lib.public_interfaces.admin_client": "AdminClient",
    "tinker.lib.public_interfaces.custom_loss": "LossHandle PerDatumLossFn",
    "tinker.lib.retry_handler": "RetryConfig RetryHandler is_retryable_status_code",
    "tinker.lib.retryable_exception": "RetryableException",
    "tinker.lib.api_future_impl": "QueueState QueueStateObserver",
    "tinker.lib.internal_client_holder": "InternalClientHolder",
    "tinker.lib.chunked_fwdbwd_helpers": "combine_fwd_bwd_output_results REDUCE_MAP",
    "tinker.lib.telemetry": "Telemetry capture_exceptions init_telemetry is_user_error",
    "tinker.lib.telemetry_provider": "TelemetryProvider",
    "tinker.lib.sync_only": "sync_only",
    "tinker.lib.experimental": "ExperimentalWarning experimental",
    "tinker.lib.client_connection_pool_type": "ClientConnectionPoolType",
    "tinker.lib.credentials": (
        "JsonCredentialStore CredentialStore ManualKey GeneratedKey StoredCredentialsV1 "
        "default_credentials_path"
    ),
    "tinker.lib.base_url": "DEFAULT_BASE_URL resolve_base_url",
    "tinker.lib.console_urls": None,
    "tinker.types.tensor_data": "TensorData",
    "tinker.types.image_chunk": "ImageChunk",
    "tinker.types.dmel_chunk": "DmelChunk",
    "tinker.types.encoded_text_chunk": "EncodedTextChunk",
    "tinker.types.image_asset_pointer_chunk": "ImageAssetPointerChunk",
    "tinker.types.datum": "Datum",
    "tinker.types.model_input": "ModelInput",
    "tinker.types.topk_logprobs": "TopkLogprobs MASK_LOGPROB topk_to_lists",
    "tinker.types.try_again_response": "TryAgainResponse",
    "tinker.types.generic_event": "GenericEvent",
    "tinker.types.shared.untyped_api_future": "UntypedAPIFuture",
    "tinker.types._tensor_container": "tensor_container_shape tensor_container_dim",
    "tinker.cli.context": "CLIContext",
    "tinker.cli.exceptions": "TinkerCliError",
    "tinker.cli.output": "OutputBase format_size format_timestamp format_bool format_optional",
}
#: Methods of the language that are compared, where a class has its own.
DUNDERS = (
    "__eq__ __hash__ __reduce__ __reduce_ex__ __getstate__ __setstate__ __await__ __enter__ "
    "__exit__ __aenter__ __aexit__ __str__ __getattr__ __iter__ __len__ __call__ __bool__ "
    "__deepcopy__ __copy__ __contains__ __getitem__ __add__"
)

_seen: dict[int, str] = {}
_keep: list[object] = []  # keep described objects alive so ids stay unique


# ----------------------------------------------------------------------------- values and types


def show(value: object) -> str:
    """Return a default or a constant as text, without addresses."""
    if isinstance(value, tuple) and any(isinstance(one, type) for one in value):
        names = (one.__name__ if isinstance(one, type) else repr(one) for one in value)
        return f"({', '.join(names)})"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, enum.Enum) and not isinstance(value, (str, int)):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return f"<callable {getattr(value, '__name__', type(value).__name__)}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def show_type(annotation: object) -> str:
    """Return an annotation without the names of modules."""
    if annotation is type(None):
        return "None"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'(?:, [^)]*)?\)", r"\1", text)
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", text)


def is_own(thing: object) -> bool:
    """Whether a class, a function or an alias is of the package."""
    return (getattr(thing, "__module__", "") or "").split(".")[0] in OWN_PACKAGES


def is_alias(value: object) -> bool:
    """Whether a value is a type that is no class, such as a union."""
    if isinstance(value, (python_types.GenericAlias, python_types.UnionType)):
        return True
    return type(value).__module__ in ("typing", "typing_extensions") and not isinstance(value, type)


def literal_values(kind: object) -> list[str] | None:
    """Return the values of a literal type; of ours also of one that is open to others, as text."""
    if isinstance(kind, str):
        found = re.search(r"Literal\[([^\]]*)\]", kind)
        return found and [repr(ast.literal_eval(value)) for value in found[1].split(",")]
    for one in (kind, *typing.get_args(kind)) if IS_OURS else (kind,):
        if typing.get_origin(one) is typing.Literal:
            return [show(value) for value in typing.get_args(one)]
    return None


def members_of(alias: object) -> list[str] | None:
    """Return the members of a union."""
    if typing.get_origin(alias) is typing.Annotated:
        return members_of(typing.get_args(alias)[0])
    if typing.get_origin(alias) in (typing.Union, python_types.UnionType):
        return sorted(map(show_type, typing.get_args(alias)))
    return None


def describe_parameters(function: object, *, bound: bool = False) -> list[dict] | None:
    """Return names, kinds and defaults, those of a method without its first one."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return [
        {"name": one.name, "kind": one.kind.name}
        | ({} if one.default is one.empty else {"default": show(one.default)})
        for one in parameters[bound:]
    ]


def describe_callable(kind: str, function: object, *, bound: bool = False) -> dict:
    return {
        "kind": kind,
        "parameters": describe_parameters(function, bound=bound),
        "async": inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(inspect.unwrap(function)),
        "deprecated": is_deprecated(function),
    }


def is_deprecated(thing: object) -> bool:
    return isinstance(getattr(thing, "__deprecated__", None), str)


# ----------------------------------------------------------------------------- classes


def flavour_of(kind: type) -> str:
    """Return what sort of class this is."""
    sorts = {
        "enum": issubclass(kind, enum.Enum),
        "exception": issubclass(kind, BaseException),
        "pydantic": issubclass(kind, pydantic.BaseModel),
        "dataclass": dataclasses.is_dataclass(kind),
        "typeddict": issubclass(kind, dict) and hasattr(kind, "__total__"),
        "attrs": hasattr(kind, "__attrs_attrs__"),
    }
    return next((name for name, fits in sorts.items() if fits), "plain")


def describe_fields(kind: type, flavour: str) -> dict:
    if flavour == "pydantic":
        return {name: pydantic_field(one) for name, one in kind.model_fields.items()}
    if flavour == "dataclass":
        return {one.name: dataclass_field(one) for one in dataclasses.fields(kind)}
    if flavour == "typeddict":
        return {one: {"required": one in kind.__required_keys__} for one in kind.__annotations__}
    return {
        one.name: {
            "required": type(one.default).__name__ == "_Nothing",
            "default": show(one.default),
        }
        for one in getattr(kind, "__attrs_attrs__", ())
    }


def pydantic_field(field: object) -> dict:
    found: dict = {"required": field.is_required()}
    if field.default_factory is not None:
        found |= {"default_factory": True, "default": show(field.default_factory())}
    elif field.default is not pydantic_core.PydanticUndefined:
        found["default"] = show(field.default)
    if field.alias:
        found["alias"] = field.alias
    if field.validation_alias not in (None, field.alias):
        choices = getattr(field.validation_alias, "choices", [field.validation_alias])
        found["validation_alias"] = list(map(str, choices))
    # marks of the SDK itself are no limits
    limits = ("annotated_types", "pydantic")
    if metadata := [one for one in field.metadata if type(one).__module__.split(".")[0] in limits]:
        found["metadata"] = sorted(map(show, metadata))
    if values := literal_values(field.annotation):
        found["literal_values"] = values
    return found


def dataclass_field(field: dataclasses.Field) -> dict:
    missing = dataclasses.MISSING
    found: dict = {"init": field.init, "compare": field.compare, "kw_only": bool(field.kw_only)}
    found["required"] = field.default is missing and field.default_factory is missing
    if field.default is not missing:
        found["default"] = show(field.default)
    if field.default_factory is not missing:
        found |= {"default_factory": True} | (
            {"default": show(field.default_factory())} if IS_OURS else {}
        )
    if IS_OURS and (values := literal_values(field.type)):
        found["literal_values"] = values
    return found


def describe_member(raw: object) -> dict | None:
    """Return what a class holds under a name; None for what is no method and no property."""
    if isinstance(raw, property) or type(raw).__name__ == "cached_property":
        return {"kind": "property"}
    if isinstance(raw, staticmethod):
        return describe_callable("staticmethod", raw.__func__)
    if isinstance(raw, classmethod):
        return describe_callable("classmethod", raw.__func__, bound=True)
    if inspect.isfunction(raw) or inspect.ismethoddescriptor(raw) or inspect.isbuiltin(raw):
        return describe_callable("method", raw, bound=True)
    return None


def describe_class(kind: type) -> dict:
    flavour = flavour_of(kind)
    found: dict = {
        "kind": "class",
        "flavour": flavour,
        "mro": [one.__name__ for one in kind.__mro__],
        "hashable": kind.__hash__ is not None,
        "abstract_methods": sorted(getattr(kind, "__abstractmethods__", ())),
        "deprecated": is_deprecated(kind),
        "fields": describe_fields(kind, flavour),
    }
    if flavour == "pydantic":
        found["config"] = {name: show(value) for name, value in sorted(kind.model_config.items())}
    elif flavour == "enum":
        found["members"] = {one.name: show(one.value) for one in kind}
    elif flavour != "typeddict":
        found["constructor"] = describe_parameters(kind.__init__, bound=True)
    if flavour == "dataclass":
        params = kind.__dataclass_params__
        found["dataclass_params"] = {one: getattr(params, one) for one in ("frozen", "eq", "order")}
    own = [one for one in kind.__mro__ if is_own(one)]
    found["dunders"] = [name for name in DUNDERS.split() if any(name in vars(one) for one in own)]
    return found | describe_members(kind, own, found)


def describe_members(kind: type, own: list[type], found: dict) -> dict:
    """Return methods, names of properties and constants that the package's own classes define."""
    fields, flavour = found["fields"], found["flavour"]
    methods, properties, attributes = {}, [], {}
    for name in sorted({name for one in own for name in vars(one) if not name.startswith("_")}):
        raw = next(vars(one)[name] for one in kind.__mro__ if name in vars(one))
        is_field = name in fields and flavour in ("pydantic", "dataclass")
        is_pydantic = flavour == "pydantic" and hasattr(pydantic.BaseModel, name)
        if is_pydantic or name in found.get("members", ()):
            continue
        member = describe_member(raw)
        if is_field and (flavour == "pydantic" or member != {"kind": "property"}):
            continue
        if member == {"kind": "property"}:
            properties.append(name)
        elif member is not None:
            methods[name] = member
        elif isinstance(value := getattr(kind, name, None), str | int | float | None | tuple):
            attributes[name] = show(value)
    return {"methods": methods, "properties": properties, "attributes": attributes}


# ----------------------------------------------------------------------------- modules


def describe(value: object, where: str) -> dict:
    if inspect.ismodule(value) or type(value).__name__ == "ResourcesProxy":
        return {"kind": "module"}
    is_class = isinstance(value, type) and not is_alias(value)
    kind = "class" if is_class else "function" if inspect.isfunction(value) else "typealias"
    if is_class or inspect.isfunction(value) or is_alias(value):
        if id(value) in _seen:
            return {"kind": kind, "ref": _seen[id(value)]}
        _seen[id(value)] = where
        _keep.append(value)
    if is_class:
        external = {"kind": kind, "external": f"{value.__module__}.{value.__qualname__}"}
        return describe_class(value) if is_own(value) else external
    if is_alias(value):
        return {"kind": kind, "literal_values": literal_values(value), "members": members_of(value)}
    if callable(value):
        return describe_callable("function", value)
    return {"kind": "value", "value": show(value)[:400]}


def public_names(module: python_types.ModuleType) -> tuple[list[str], list[str]]:
    """Return the names that a module exports, and the others that are public and of the package."""
    declared = list(getattr(module, "__all__", ()))
    others = [name for name in dir(module) if not name.startswith("_") and name not in declared]
    return declared, sorted(one for one in others if is_public(getattr(module, one, None)))


def is_public(value: object) -> bool:
    if inspect.ismodule(value):
        return value.__name__.split(".")[0] == PKG
    home = getattr(value, "__module__", None)
    is_others = isinstance(home, str) and home.split(".")[0] != PKG and not is_alias(value)
    return not is_others and type(value).__name__ != "_Feature"


def describe_exports(name: str) -> dict:
    """Return the public names of a module, which the package may not have."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return {}
    declared, others = public_names(module)
    return {
        one: describe(getattr(module, one), f"{name}:{one}") | {"in_all": one in declared}
        for one in declared + others
    }


def describe_private(name: str, wanted: str | None) -> dict:
    """Return the wanted names of a module that are there; if none are named, its own."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return {}
    names = (
        wanted.split() if wanted else sorted(one for part in public_names(module) for one in part)
    )
    found = {one: getattr(module, one) for one in names if hasattr(module, one)}
    return {
        one: describe(value, f"private:{name}.{one}")
        for one, value in found.items()
        if wanted or getattr(value, "__module__", name) in (name, PKG)
    }


def list_modules() -> list[str]:
    """Return the modules of the package, also those in folders without an `__init__`."""
    names = {one.name for one in pkgutil.walk_packages(tinker.__path__, f"{PKG}.")}
    for root in tinker.__path__:
        for folder, _, files in os.walk(root):
            parts = [PKG, *os.path.relpath(folder, root).split(os.sep)]
            for file in (one for one in files if one.endswith(".py")):
                path = ".".join([one for one in parts if one != "."] + [file[:-3]])
                names.add(path.removesuffix(".__init__"))
    return sorted(one for one in names if not one.endswith(("_test", "__main__")))


def list_names() -> dict[str, list[str]]:
    """Return the public names of each module, of the official package only its own."""
    found = {}
    for name in list_modules():
        with contextlib.suppress(BaseException):
            module = importlib.import_module(name)
            listed = set(getattr(module, "__all__", ()))
            names = {
                one for one in {*vars(module), *dir(module)} if not one.startswith("_")
            } | listed
            found[name] = sorted(
                one for one in names if IS_OURS or one in listed or is_name_own(module, one)
            )
    return found


def is_name_own(module: object, name: str) -> bool:
    """Whether a name is a class, function, alias or constant of the package."""
    value = getattr(module, name, None)
    if inspect.ismodule(value) or value is getattr(python_types, name, python_types):
        return False
    origin = getattr(value, "__module__", None)
    if is_alias(value):
        special = ("_SpecialForm", "TypedCacheSpecialForm")
        return type(value).__name__ not in special and str(value) != f"typing.{name}"
    if origin is None or origin == "builtins":
        # of a class of Python under another name, as ModelID is, never its own
        named = getattr(value, "__name__", None)
        is_nothing = value is type(None) or value is typing.Any
        return name not in ("annotations", "TYPE_CHECKING", named) and not is_nothing
    return is_own(value)


def describe_package() -> dict:
    found = importlib.metadata.distribution(PKG)
    scripts = (f"{one.group}:{one.name}" for one in found.entry_points)
    return {
        "extras": sorted(found.metadata.get_all("Provides-Extra") or []),
        "entry_points": sorted(scripts),
        "typed": any(str(file).endswith("py.typed") for file in found.files or []),
    }


# ----------------------------------------------------------------------------- commands


def command_tree() -> dict:
    """Return each command by its path, with its parameters."""
    import click

    from tinker.cli import __main__ as program

    (root,) = {
        id(one): one for one in vars(program).values() if isinstance(one, click.Group)
    }.values()
    found, waiting = {}, [("tinker", root)]
    while waiting:
        path, command = waiting.pop(0)
        is_group = isinstance(command, click.Group)
        found[path] = {
            "kind": "group" if is_group else "command",
            "params": list(map(describe_parameter, command.params)),
        }
        context = click.Context(command, info_name=path)
        names = command.list_commands(context) if is_group else ()
        waiting[:0] = [(f"{path} {name}", command.get_command(context, name)) for name in names]
    return found


def describe_parameter(parameter: object) -> dict:
    kind, default = parameter.type, parameter.default
    choices = getattr(kind, "choices", None)
    found = {
        "name": parameter.name,
        "param_type": parameter.param_type_name,
        "opts": sorted(parameter.opts),
        "type": "choice" if choices else kind.name,
        "required": bool(parameter.required),
        "nargs": parameter.nargs,
        "multiple": bool(getattr(parameter, "multiple", False)),
        "is_flag": bool(getattr(parameter, "is_flag", False)),
        "default": None if default is None or "UNSET" in repr(default).upper() else show(default),
    }
    return found | ({"choices": list(map(str, choices))} if choices else {})


#: Commands that end without a server.
COMMANDS = {
    "no args": "",
    "--help": "--help",
    "-h": "-h",
    "version": "version",
    "--version": "--version",
    "unknown command": "nosuch",
    "bad format": "-f xml version",
    "json version": "-f json version",
    "checkpoint (no sub)": "checkpoint",
    "checkpoint info bad path": "checkpoint info foo",
    "checkpoint info no arg": "checkpoint info",
    "checkpoint publish bad path": "checkpoint publish foo",
    "checkpoint unpublish bad path": "checkpoint unpublish foo",
    "set-ttl bad path": "checkpoint set-ttl foo --ttl 3600",
    "set-ttl neither": "checkpoint set-ttl tinker://r/weights/1",
    "set-ttl both": "checkpoint set-ttl tinker://r/weights/1 --ttl 1 --remove",
    "delete nothing": "checkpoint delete",
    "delete both": "checkpoint delete tinker://r/weights/1 --run-id r",
    "delete filter no run": "checkpoint delete tinker://r/weights/1 --type weights",
    "download sampler path": "checkpoint download tinker://r/sampler_weights/1",
    "download bad path": "checkpoint download foo",
    "run list bad column": "run list -c nope",
    "run list no creds": "run list",
    "model list no creds": "model list",
    "auth status no creds": "auth status",
    "auth logout no creds": "auth logout",
    "auth whoami no creds": "auth whoami",
    "billing usage no args": "billing usage",
    "session export-trace no arg": "session export-trace",
}


def end_of_command(arguments: str) -> dict:
    """Return the exit status of a command without credentials, and whether it had a traceback."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TINKER_")}
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    program = (
        "import sys, importlib.metadata as m; sys.argv[0] = 'tinker';"
        "(found,) = [x for x in m.entry_points(group='console_scripts') if x.name == 'tinker'];"
        "sys.exit(found.load()())"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments.split()],
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **kept,
                "HOME": folder,
                "COLUMNS": "100",
                "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in paths if one),
            },
            cwd=folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    return {"status": done.returncode, "traceback": "Traceback (most recent" in done.stderr}


# ----------------------------------------------------------------------------- probes


#: Names of sampling parameters that programs take over from vLLM, transformers, TRL and OpenAI.
NAMES_OF_OTHER_LIBRARIES = (
    "best_of do_sample include_stop_str_in_output logit_bias logprobs max_length max_new_tokens "
    "min_tokens n prompt_logprobs return_logprobs skip_special_tokens stop_sequences stop_strings "
    "stop_token_ids top_logprobs"
)
PYDANTIC_FIELDS = {
    "AdamParams": "learning_rate beta1 beta2 eps weight_decay grad_clip_norm",
    "Checkpoint": (
        "checkpoint_id checkpoint_type time tinker_path size_bytes public user_metadata expires_at"
    ),
    "Cursor": "offset limit total_count",
    "EncodedTextChunk": "tokens type",
    "ImageChunk": "data format expected_tokens type",
    "LoraConfig": "rank seed train_unembed train_mlp train_attn",
    "ModelInput": "chunks",
    "OptimStepRequest": "optim_params model_id seq_id type",
    "SampleRequest": (
        "num_samples prompt sampling_params base_model model_path sampling_session_id seq_id "
        "topk_prompt_logprobs"
    ),
    "SamplingParams": "max_tokens seed stop temperature top_k top_p",
}
STATUS_ERRORS = (
    "APIStatusError BadRequestError AuthenticationError BillingError PermissionDeniedError "
    "NotFoundError ConflictError UnprocessableEntityError RateLimitError InternalServerError"
)
PATHS = (
    "tinker://r/sampler_weights/1",
    "tinker://r/external_weights/1",
    "r/weights/1",
    "tinker://r/weights",
    "tinker://r/weights/a/b",
    "tinker://r/foo/1",
    "tinker:///weights/1",
)
DATUM_KEYS = (
    "target_tokens weights advantages logprobs clip_low_threshold clip_high_threshold "
    "sequence_ratio_mask"
)


class TookTooLong(BaseException):
    """A probe is not done in time."""


class Probes:
    """What became of each probe: its value, or what it raised."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        signal.signal(signal.SIGALRM, self._give_up)

    def _give_up(self, *_: object) -> None:
        raise TookTooLong

    def __call__(self, name: str, run: typing.Callable[[], object]) -> None:
        signal.setitimer(signal.ITIMER_REAL, 10)
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                warnings.catch_warnings(record=True) as warned,
            ):
                warnings.simplefilter("always")
                value = show_value(run())
            kinds = ",".join(sorted({one.category.__name__ for one in warned}))
            self.found[name] = f"ok: {value}" + f" [warns {kinds}]" * bool(kinds)
        except BaseException as error:
            self.found[name] = f"raises {type(error).__name__}: {show_error(error)}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def each(self, prefix: str, runs: dict[str, typing.Callable[[], object]]) -> None:
        for name, run in runs.items():
            self(f"{prefix}.{name}", run)


def show_value(value: object) -> str:
    if isinstance(value, np.ndarray) or type(value).__name__ == "Tensor":
        kind = "ndarray" if isinstance(value, np.ndarray) else "tensor"
        return f"{kind}({value.dtype},{value.tolist()})"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:600]


def show_error(error: BaseException) -> str:
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        return "; ".join(sorted({one["type"] for one in error.errors()}))
    return (str(error).splitlines() or [""])[0][:300]


def same_without(kind: type, name: str) -> dict:
    """Whether a value is the same with a name that its class has not, for each way to make it."""
    values = {"max_tokens": 4, name: 1}
    holder = pydantic.create_model("Holder", value=(kind, ...))
    forms = {
        "constructor": lambda: kind(**values),
        "model_validate": lambda: kind.model_validate(values),
        "model_validate_json": lambda: kind.model_validate_json(json.dumps(values)),
        "parse_obj": lambda: kind.parse_obj(values),
        "model_copy": lambda: kind(max_tokens=4).model_copy(update={name: 1}),
        "field": lambda: holder(value=values).value,
        "TypeAdapter": lambda: pydantic.TypeAdapter(kind).validate_python(values),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {form: make() == kind(max_tokens=4) for form, make in forms.items()}


def described(kind: type, names: list[str]) -> dict:
    """What `model_fields` says: is it required, its default, is its type only a text."""
    fields = {name: kind.model_fields[name] for name in names}
    return {
        name: [
            field.is_required(),
            str(field.get_default()).removesuffix(".0"),
            isinstance(field.annotation, str),
        ]
        for name, field in fields.items()
    }


def of(value: object, names: str) -> tuple:
    """Return these attributes of a value."""
    return tuple(getattr(value, name) for name in names.split())


def roundtrip(value: object) -> object:
    return pickle.loads(pickle.dumps(value))


def is_hashed(value: object) -> bool:
    return isinstance(hash(value), int)


MI, TC, TD, D = types.ModelInput, types.EncodedTextChunk, types.TensorData, types.Datum


def probe_inputs(probe: Probes) -> None:
    mi, ints, image = MI.from_ints([1, 2, 3]), MI.from_ints, types.ImageChunk
    probe.each(
        "mi",
        {
            "length": lambda: mi.length,
            "to_ints": lambda: mi.to_ints(),
            "repr": lambda: repr(mi),
            "str": lambda: str(mi),
            "eq": lambda: mi == ints([1, 2, 3]),
            "neq": lambda: mi == ints([1, 2]),
            "hash": lambda: is_hashed(mi),
            "frozen": lambda: setattr(mi, "chunks", []),
            "extra": lambda: MI(chunks=[], foo=1),
            "pickle": lambda: roundtrip(mi) == mi,
            "deepcopy": lambda: copy.deepcopy(mi) == mi,
            "copy_identity_chunks": lambda: copy.copy(mi).chunks is mi.chunks,
            "model_dump": lambda: mi.model_dump(),
            "model_dump_json": lambda: mi.model_dump_json(),
            "model_copy": lambda: mi.model_copy(update={"chunks": []}),
            "model_validate": lambda: MI.model_validate(
                {"chunks": [{"type": "encoded_text", "tokens": [5]}]}
            ),
            "model_validate_json": lambda: MI.model_validate_json(
                '{"chunks":[{"type":"image","data":"aGk=","format":"png"}]}'
            ),
            "model_fields": lambda: sorted(MI.model_fields),
            "append_int": lambda: (
                mi.append_int(4).to_ints(),
                mi.to_ints(),
                len(mi.append_int(4).chunks),
            ),
            "append": lambda: mi.append(TC(tokens=[9])).to_ints(),
            "empty": lambda: (MI.empty().length, MI.empty().chunks, MI.empty().to_ints()),
            "from_ints_np": lambda: ints(np.array([1, 2])),
            "from_ints_npints": lambda: ints([np.int64(1), np.int32(2)]).to_ints(),
            "from_ints_tuple": lambda: ints((1, 2)).chunks[0].tokens,
            "from_ints_range": lambda: ints(range(3)).chunks[0].tokens,
            "from_ints_float": lambda: ints([1.5]),
            "from_ints_floatint": lambda: ints([1.0]).to_ints(),
            "from_ints_str": lambda: ints(["1"]).to_ints(),
            "from_ints_bool": lambda: ints([True]).to_ints(),
            "from_ints_empty": lambda: (ints([]).length, len(ints([]).chunks)),
            "from_ints_aliases_list": lambda: (lambda one: ints(one).chunks[0].tokens is one)([1]),
            "from_ints_negative": lambda: ints([-1]).to_ints(),
            "to_ints_image": lambda: MI(chunks=[image(data=b"abc", format="png")]).to_ints(),
            "length_image": lambda: MI(chunks=[image(data=b"abc", format="png")]).length,
            "bad_chunk": lambda: MI(chunks=[{"type": "nope"}]),
            "none_chunks": lambda: MI(chunks=None),
            "tuple_chunks": lambda: type(MI(chunks=(TC(tokens=[1]),)).chunks).__name__,
        },
    )
    probe.each(
        "tc",
        {
            "positional": lambda: TC([1]),
            "tuple_hash": lambda: is_hashed(TC(tokens=(1, 2))),
            "list_hash": lambda: is_hashed(TC(tokens=[1, 2])),
            "type": lambda: TC(tokens=[1]).type,
            "bad_type": lambda: TC(tokens=[1], type="image"),
        },
    )
    img = image(data=b"abc", format="png")
    probe.each(
        "img",
        {
            "length_unset": lambda: img.length,
            "length": lambda: image(data=b"abc", format="png", expected_tokens=7).length,
            "dump": lambda: img.model_dump(),
            "b64str": lambda: image(data="aGk=", format="jpeg").data,
            "badfmt": lambda: image(data=b"", format="webp"),
            "required": lambda: image(data=b""),
            "repr": lambda: repr(img),
            "hash": lambda: is_hashed(img),
        },
    )
    probe(
        "iap.length_unset", lambda: types.ImageAssetPointerChunk(format="png", location="x").length
    )
    probe("dmel.length", lambda: types.DmelChunk(dmel=bytes([0, 2, 5, 80])).length)
    probe("dmel.empty", lambda: types.DmelChunk(dmel=b"").length)


def probe_tensors(probe: Probes) -> None:
    given = {"data": [1.0, 2.0, 3.0, 4.0], "dtype": "float32", "shape": [2, 2]}
    td, numpy, zeros = TD(**given), TD.from_numpy, np.zeros(3, np.float32)
    whole, sparse = "dtype shape data", "data shape sparse_crow_indices sparse_col_indices"
    probe.each(
        "td",
        {
            "repr": lambda: repr(td),
            "str": lambda: str(td),
            "data": lambda: td.data,
            "data_type": lambda: type(td.data).__name__,
            "tolist": lambda: td.tolist(),
            "to_numpy": lambda: td.to_numpy(),
            "to_numpy_shares": lambda: td.to_numpy() is td.to_numpy(),
            "eq_same": lambda: td == td,
            "eq_equal": lambda: td == TD(**given),
            "hash": lambda: is_hashed(td),
            "frozen": lambda: setattr(td, "dtype", "int64"),
            "frozen_data": lambda: setattr(td, "data", [1]),
            "pickle": lambda: roundtrip(td).tolist(),
            "deepcopy": lambda: (
                copy.deepcopy(td).tolist(),
                copy.deepcopy(td).to_numpy() is td.to_numpy(),
            ),
            "no_args": lambda: TD(),
            "no_dtype": lambda: TD(data=[1]),
            "dtype_only": lambda: TD(dtype="int64").tolist(),
            "bad_dtype": lambda: TD(data=[1], dtype="float64"),
            "noshape": lambda: shape_and_list([1, 2]),
            "noshape_nested": lambda: shape_and_list([[1, 2]]),
            "bad_shape": lambda: TD(data=[1, 2, 3], dtype="int64", shape=[2, 2]),
            "scalar": lambda: TD(data=[5], dtype="int64", shape=[]).tolist(),
            "positional": lambda: TD([1, 2], "int64", [2]).tolist(),
            "float_to_int": lambda: TD(data=[1.7], dtype="int64").tolist(),
            "from_numpy_f64": lambda: dtypes(numpy(np.zeros((2, 3)))),
            "from_numpy_i32": lambda: dtypes(numpy(np.zeros(2, np.int32))),
            "from_numpy_u8": lambda: numpy(np.zeros(2, np.uint8)),
            "from_numpy_bool": lambda: numpy(np.zeros(2, bool)),
            "from_numpy_f16": lambda: numpy(np.zeros(2, np.float16)).dtype,
            "from_numpy_0d": lambda: of(numpy(np.array(3.0)), "shape data"),
            "from_numpy_shares": lambda: numpy(zeros).to_numpy() is zeros,
            "from_numpy_readonly": lambda: (
                zeros.setflags(write=False),
                numpy(zeros).to_numpy().flags.writeable,
            ),
            "sparse_ctor": lambda: of(TD([7.0], "float32", [2, 3], [0, 1, 1], [2]), sparse),
            "model_dump": lambda: td.model_dump(),
            "isdataclass": lambda: dataclasses.is_dataclass(td),
            "replace": lambda: dataclasses.replace(td, dtype="int64"),
            "asdict": lambda: sorted(dataclasses.asdict(td)),
        },
    )
    if not HAS_TORCH:
        probe("td.to_torch_without_torch", lambda: td.to_torch())
        return
    import torch

    wide, held, from_sparse = torch.zeros(4, 8), torch.zeros(3), TD.from_torch_sparse
    wide[1, 2] = 3.0
    padded = torch.where(wide != 0, wide, torch.tensor(-1.0)).long()
    probe.each(
        "td",
        {
            "from_torch": lambda: of(TD.from_torch(torch.tensor([[1, 2]])), whole),
            "from_torch_bf16": lambda: of(
                TD.from_torch(torch.tensor([1.5], dtype=torch.bfloat16)), "dtype data"
            ),
            "from_torch_bool": lambda: TD.from_torch(torch.tensor([True])).dtype,
            "from_torch_grad": lambda: TD.from_torch(torch.ones(2, requires_grad=True)).data,
            "from_torch_noncontig": lambda: TD.from_torch(torch.arange(6).reshape(2, 3).T).data,
            "from_torch_shares": lambda: (
                TD.from_torch(held).to_torch().data_ptr() == held.data_ptr()
            ),
            "to_torch": lambda: td.to_torch(),
            "to_torch_int": lambda: TD(data=[1], dtype="int64").to_torch(),
            "from_torch_sparse": lambda: of(from_sparse(wide), sparse),
            "from_torch_sparse_dense_fallback": lambda: (
                from_sparse(torch.ones(2, 2)).sparse_crow_indices
            ),
            "from_torch_sparse_1d": lambda: from_sparse(torch.zeros(9)).sparse_crow_indices,
            "from_torch_sparse_pad": lambda: (
                lambda one: (one.data, one.to_torch(-1).tolist()[0][:3])
            )(from_sparse(padded, pad_value=-1)),
            "pad_bool": lambda: from_sparse(wide, pad_value=True),
            "sparse_tolist": lambda: from_sparse(wide).tolist(),
        },
    )
    probe("datum.torch_2d_weights_sparse", lambda: loss_input(wide).sparse_crow_indices)
    probe("datum.torch_2d_other_dense", lambda: loss_input(wide, "advantages").sparse_crow_indices)


def shape_and_list(data: list) -> tuple:
    return TD(data=data, dtype="int64").shape, TD(data=data, dtype="int64").tolist()


def dtypes(tensor: TD) -> tuple:
    return tensor.dtype, tensor.shape, str(tensor.to_numpy().dtype)


def loss_input(value: object, key: str = "weights") -> TD:
    """Return what a datum makes of a loss input."""
    return D(model_input=MI.from_ints([1, 2, 3]), loss_fn_inputs={key: value}).loss_fn_inputs[key]


def probe_datums(probe: Probes) -> None:
    mi = MI.from_ints([1, 2, 3])
    d = D(model_input=mi, loss_fn_inputs={"target_tokens": [1, 2, 3], "weights": [0, 1, 1]})
    source, more = {"weights": [1.0]}, loss_input([1.0])
    tokens = "target_tokens"
    probe.each(
        "datum",
        {
            "dtypes": lambda: {
                key: of(one, "dtype shape data") for key, one in d.loss_fn_inputs.items()
            },
            "unknown_key_list": lambda: D(model_input=mi, loss_fn_inputs={"foo": [1.0]}),
            "unknown_key_np": lambda: loss_input(np.zeros(2), "foo").dtype,
            "int_weights_np": lambda: loss_input(np.array([1, 0])).dtype,
            "ragged": lambda: loss_input([[1.0], [1.0, 2.0]]),
            "nested": lambda: loss_input([[1, 2], [3, 4]], tokens).shape,
            "empty_list": lambda: of(loss_input([], tokens), "dtype shape"),
            "bool_list": lambda: loss_input([True, False]).data,
            "str_list": lambda: loss_input(["a"]),
            "tuple": lambda: loss_input((1.0,)),
            "model_input_value": lambda: loss_input(mi, tokens),
            "scalar": lambda: loss_input(1.0),
            "all_keys": lambda: {key: loss_input([1], key).dtype for key in DATUM_KEYS.split()},
            "default_inputs": lambda: D(model_input=mi).loss_fn_inputs,
            "positional": lambda: D(mi, {"weights": [1.0]}).loss_fn_inputs["weights"].data,
            "bad_model_input": lambda: (
                type(D(model_input="x", loss_fn_inputs={}).model_input).__name__
            ),
            "frozen": lambda: setattr(d, "model_input", mi),
            "mutable_inputs": lambda: (
                d.loss_fn_inputs.__setitem__("x", more) is None
                and d.loss_fn_inputs.pop("x") is more
            ),
            "eq_same": lambda: d == d,
            "eq_copy": lambda: d == copy.deepcopy(d),
            "hash": lambda: is_hashed(d),
            "pickle": lambda: roundtrip(d).loss_fn_inputs["weights"].data,
            "deepcopy": lambda: copy.deepcopy(d).loss_fn_inputs[tokens].data,
            "model_dump": lambda: d.model_dump(),
            "model_copy": lambda: d.model_copy(),
            "replace": lambda: dataclasses.replace(d, model_input=MI.empty()).model_input.length,
            "input_not_mutated": lambda: (
                D(model_input=mi, loss_fn_inputs=source) is not None and source["weights"]
            ),
            "extra": lambda: D(model_input=mi, loss_fn_inputs={}, foo=1),
        },
    )
    prompt, sampled = types.PromptProvenanceSpan, types.SampledProvenanceSpan
    span = functools.partial(prompt, sequence_id="s")
    probe.each(
        "span",
        {
            "repr": lambda: repr(span(length=2)),
            "hash_eq": lambda: (
                hash(span(length=2)) == hash(span(length=2)),
                span(length=2) == span(length=2),
            ),
            "neg": lambda: span(length=-1),
            "emptyid": lambda: sampled(sequence_id="", length=1),
            "negoff": lambda: sampled(sequence_id="s", length=1, offset=-1),
            "positional": lambda: sampled("s", 0, 1),
        },
    )
    told = D(model_input=mi, loss_fn_inputs={tokens: [1, 2, 3]}).with_provenance
    target = [sampled(sequence_id="s", length=3)]
    bare = functools.partial(D, model_input=mi, loss_fn_inputs={})
    probe.each(
        "datum",
        {
            "with_provenance": lambda: len(told([span(length=3)], target).model_input_spans),
            "with_provenance_bad": lambda: told([span(length=2)], target),
            "one_span_only": lambda: bare(model_input_spans=[]),
            "bad_span_type": lambda: bare(model_input_spans=[1], loss_fn_input_spans=[1]),
        },
    )


def probe_params(probe: Probes) -> None:
    SP, AP, dimuon = types.SamplingParams, types.AdamParams, types.DimuonParams
    probe("sp.default", lambda: repr(SP()))
    probe("sp.extra_ignored", lambda: repr(SP(foo=1)))
    for other in NAMES_OF_OTHER_LIBRARIES.split():
        probe(f"sp.ignored.{other}", lambda other=other: same_without(SP, other))
    for kind, fields in PYDANTIC_FIELDS.items():
        probe(
            f"model_fields.{kind}",
            lambda kind=kind, fields=fields: described(getattr(types, kind), fields.split()),
        )
    probe.each(
        "sp",
        {
            "frozen": lambda: setattr(SP(), "seed", 1),
            "hash": lambda: is_hashed(SP()),
            "hash_list_stop": lambda: is_hashed(SP(stop=["a"])),
            "stop_str": lambda: SP(stop="a").stop,
            "stop_strs": lambda: SP(stop=["a", "b"]).stop,
            "stop_ints": lambda: SP(stop=[1, 2]).stop,
            "stop_mixed": lambda: SP(stop=[1, "a"]).stop,
            "stop_npints": lambda: SP(stop=[np.int64(3)]).stop,
            "stop_empty": lambda: SP(stop=[]).stop,
            "temp_int_type": lambda: type(SP(temperature=0).temperature).__name__,
            "default_temp_type": lambda: tuple(
                type(one).__name__ for one in of(SP(), "temperature top_p")
            ),
            "model_copy": lambda: SP().model_copy(update={"max_tokens": 3}).max_tokens,
            "model_dump": lambda: SP(max_tokens=5).model_dump(exclude_none=True),
            "pickle": lambda: roundtrip(SP(max_tokens=5)) == SP(max_tokens=5),
            "max_tokens_float": lambda: SP(max_tokens=5.5),
            "max_tokens_negative": lambda: SP(max_tokens=-5).max_tokens,
        },
    )
    probe.each(
        "adam",
        {
            "default": lambda: repr(AP()),
            "extra": lambda: AP(foo=1),
            "frozen": lambda: setattr(AP(), "beta1", 1),
            "positional": lambda: AP(1e-4),
            "hash": lambda: is_hashed(AP()),
            "eq": lambda: AP() == AP(),
        },
    )
    probe.each(
        "dimuon",
        {
            "required": lambda: dimuon(),
            "repr": lambda: repr(dimuon(learning_rate=1)),
            "neg": lambda: dimuon(learning_rate=-1),
            "inf": lambda: dimuon(learning_rate=float("inf")),
            "beta1": lambda: dimuon(learning_rate=1, beta1=1.0),
            "cfg": lambda: repr(types.DimuonOptimizerConfig()),
        },
    )
    probe("adamcfg.repr", lambda: repr(types.AdamOptimizerConfig()))
    probe("lora.required", lambda: types.LoraConfig())
    probe("lora.repr", lambda: repr(types.LoraConfig(rank=8)))
    for name, given in {
        "optim": {"adam_params": AP()},
        "optim2": {"optim_params": AP()},
        "optim3": {"optim_params": dimuon(learning_rate=0.1)},
    }.items():
        probe(
            f"{name}.dump",
            lambda given=given: types.OptimStepRequest(**given, model_id="m", seq_id=1).model_dump(
                mode="json", exclude_none=True
            ),
        )


def probe_results(probe: Probes) -> None:
    SS, SR = types.SampledSequence, functools.partial(types.SampleResponse, sequences=[])
    q = functools.partial(SS, stop_reason="stop", sequence_id="q")
    one = functools.partial(q, tokens_np=np.array([1], np.int32))
    two = functools.partial(q, tokens_np=np.array([1, 2], np.int32))
    both = functools.partial(two, logprobs_np=np.array([0.5, 0.25], np.float32))
    lists = {"_tokens_list": [1], "_logprobs_list": [0.1]}
    probe.each(
        "seq",
        {
            "ctor_required": lambda: SS(),
            "ctor_wire": lambda: SS(tokens=[1], stop_reason="stop"),
            "ctor_np": lambda: of(both(), "tokens logprobs topk_logprobs"),
            "ctor_list": lambda: of(
                SS(stop_reason="length", sequence_id="q", **lists), "tokens logprobs tokens_np"
            ),
            "empty_tokens": lambda: of(q(), "tokens logprobs"),
            "repr": lambda: repr(one()),
            "frozen": lambda: setattr(q(), "stop_reason", "x"),
            "tokens_cached": lambda: (lambda sequence: sequence.tokens is sequence.tokens)(one()),
            "pickle": lambda: roundtrip(one()).tokens,
            "eq_np": lambda: two() == two(tokens_np=np.array([1, 2], np.int32)),
            "hash_np": lambda: is_hashed(two()),
            "model_dump": lambda: q().model_dump(),
        },
    )
    scored = functools.partial(SR, prompt_logprobs_np=np.array([np.nan, -1.5], np.float32))
    answers = "prompt_logprobs topk_prompt_logprobs prompt_cache_hit_tokens"
    probe.each(
        "resp",
        {
            "ctor": lambda: of(SR(), answers),
            "prompt_logprobs_nan": lambda: scored().prompt_logprobs,
            "repr": lambda: repr(SR()),
            "pickle": lambda: roundtrip(scored()).prompt_logprobs,
        },
    )
    output = types.ForwardBackwardOutput(loss_fn_output_type="X", loss_fn_outputs=[])
    probe("fb.ctor", lambda: repr(output))
    probe("fb.loss", lambda: output.loss)
    probe("fb.metrics_mutable", lambda: output.metrics.update(a=1) or output.metrics)
    parse = types.ParsedCheckpointTinkerPath.from_tinker_path
    probe("ckpt.path", lambda: repr(parse("tinker://r/weights/1")))
    for path in PATHS:
        probe(
            f"ckpt.path {path}",
            lambda path=path: of(parse(path), "training_run_id checkpoint_type checkpoint_id"),
        )
    saved = types.SaveWeightsResponse
    sampler = types.SaveWeightsForSamplerResponse(path="tinker://r/sampler_weights/1")
    probe("saved.console_url", lambda: saved(path="tinker://r/weights/1").get_console_url())
    probe("saved.sampler_console_url", lambda: sampler.get_console_url())
    probe("saved.playground_url", lambda: sampler.get_playground_url())
    probe("basemodel.extra_ignored", lambda: repr(saved(path="p", nope=1)))
    probe("basemodel.frozen", lambda: setattr(saved(path="p"), "path", "q"))
    probe(
        "getinfo",
        lambda: repr(types.GetInfoResponse(model_data={"model_name": "m"}, model_id="x")),
    )


def probe_errors(probe: Probes) -> None:
    request = httpx.Request("GET", "http://x/")
    response = httpx.Response(404, request=request)
    makers = {
        "APIError": lambda kind: kind("msg", request, body=None),
        "APIResponseValidationError": lambda kind: kind(response, {"a": 1}),
        "APIConnectionError": lambda kind: kind(request),
        "APITimeoutError": lambda kind: kind(request),
        **dict.fromkeys(
            STATUS_ERRORS.split(), lambda kind: kind("msg", response=response, body={"a": 1})
        ),
    }
    for name, make in makers.items():
        made = functools.partial(make, getattr(tinker, name))
        probe(f"exc.{name}", lambda made=made: show_api_error(made()))
        for way, copied in {"pickle": roundtrip, "deepcopy": copy.deepcopy}.items():
            probe(
                f"exc.{name}.{way}",
                lambda made=made, copied=copied: (
                    lambda error: (type(error).__name__, str(error), error.body)
                )(copied(made())),
            )
    categories = types.RequestErrorCategory
    failed = functools.partial(
        tinker.RequestFailedError, "m", request_id="r", category=categories.User
    )
    probe(
        "exc.category",
        lambda: (list(categories), [str(one) for one in categories], categories("user")),
    )
    probe(
        "exc.RequestFailedError",
        lambda: (str(failed()), *of(failed(), "message request_id category")),
    )
    for way, copied in {"pickle": roundtrip, "deepcopy": copy.deepcopy}.items():
        probe(
            f"exc.RequestFailedError.{way}",
            lambda copied=copied: (
                str(copied(failed())),
                *of(copied(failed()), "request_id category"),
            ),
        )
    probe(
        "exc.RequestFailedError.isapi",
        lambda: issubclass(tinker.RequestFailedError, tinker.APIError),
    )


def show_api_error(error: tinker.APIError) -> tuple:
    status = getattr(error, "status_code", None)
    return str(error), error.message, error.body, status, repr(error)


def probe_futures(probe: Probes) -> None:
    from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture as ACF

    done: Future = Future()
    done.set_result(5)
    pending: Future = Future()

    async def await_it(future: ACF) -> object:
        return await future

    async def await_twice(future: ACF) -> tuple:
        return (await future, await future)

    probe.each(
        "acf",
        {
            "result": lambda: ACF(done).result(),
            "await": lambda: asyncio.run(await_it(ACF(done))),
            "await_twice": lambda: asyncio.run(await_twice(ACF(done))),
            "future_identity": lambda: ACF(done).future() is done,
            "result_timeout": lambda: ACF(pending).result(timeout=0.01),
            "result_async_timeout": lambda: asyncio.run(ACF(pending).result_async(timeout=0.01)),
            "cancelled_by_async_timeout": lambda: pending.cancelled(),
            "coroutine": lambda: asyncio.run(ACF(done).coroutine()),
            "has_done": lambda: hasattr(ACF(done), "done"),
            "has_add_done_callback": lambda: hasattr(ACF(done), "add_done_callback"),
        },
    )


def probe_clients(probe: Probes) -> None:
    """Clients that reach no server, and credentials from the environment."""
    for name in [name for name in os.environ if name.startswith("TINKER_")]:
        del os.environ[name]
    os.environ["HOME"] = "/nonexistent-home"
    SC, auth = tinker.ServiceClient, tinker.auth
    untrained = {"train_mlp": False, "train_attn": False, "train_unembed": False}

    def enter(client: SC) -> bool:
        with client as entered:
            return entered is client

    def use_after_close(client: SC) -> object:
        client.close("success").result(1)
        return client.create_sampling_client(base_model="x")

    probe.each(
        "sc",
        {
            "ctor_lazy": lambda: type(SC()).__name__,
            "ctor_bad_key": lambda: type(SC(api_key="zzz")).__name__,
            "kwargs": lambda: type(SC(timeout=3)).__name__,
            "create_sampling_none": lambda: SC().create_sampling_client(),
            "create_sampling_nokey": lambda: SC().create_sampling_client(base_model="x"),
            "create_lora_nothing": lambda: SC().create_lora_training_client("m", **untrained),
            "console_url": lambda: SC().get_console_url(),
            "close_unused": lambda: SC().close("success").result(1),
            "ctx_manager": lambda: enter(SC()),
            "use_after_close": lambda: use_after_close(SC()),
        },
    )
    probe("rest.nokey", lambda: tinker.RestClient())
    probe("rest.badkey", lambda: tinker.RestClient(api_key="zzz"))
    probe("auth.raise_none", lambda: auth.raise_if_tinker_not_accessible())
    for name, variables in {
        "none": {},
        "env": {"TINKER_API_KEY": "tml-abc"},
        "bad": {"TINKER_API_KEY": "bad"},
        "cmd": {"TINKER_CREDENTIAL_CMD": "echo x"},
    }.items():
        os.environ.update(variables)
        probe(f"auth.has_{name}", lambda: auth.tinker_has_credentials())
        probe(f"auth.token_{name}", lambda: auth.get_tinker_token())
        for variable in variables:
            del os.environ[variable]


def probe_retries(probe: Probes) -> None:
    from tinker.lib.retry_handler import RetryConfig

    probe.each(
        "retry",
        {
            "default": lambda: {
                name: show(value) for name, value in dataclasses.asdict(RetryConfig()).items()
            },
            "bad": lambda: RetryConfig(max_connections=0),
            "hash": lambda: hash(RetryConfig()) == hash(RetryConfig()),
            "mutable": lambda: setattr(RetryConfig(), "progress_timeout", 1),
        },
    )


def probes() -> dict[str, str]:
    """Return what became of each small program."""
    found, environment = Probes(), dict(os.environ)
    for part in (
        probe_inputs,
        probe_tensors,
        probe_datums,
        probe_params,
        probe_results,
        probe_errors,
        probe_futures,
        probe_clients,
        probe_retries,
    ):
        part(found)
    os.environ.clear()
    os.environ.update(environment)
    return found.found


# ----------------------------------------------------------------------------- arguments


def forms(value: object) -> dict[str, object]:
    """Return the same value in other forms that programs hold it in, by a name for the form."""
    given: dict[str, object] = {"plain": value}
    if isinstance(value, bool):
        given |= {"int": int(value), "numpy": np.bool_(value), "str": str(value).lower()}
    elif isinstance(value, (int, float)):
        kinds = ("int64", "int32", "float32", "float64")
        given |= {
            kind: getattr(np, kind)(value)
            for kind in kinds
            if kind != "int32" or isinstance(value, int)
        }
        given |= {"array": np.array(value), "str": str(value)}
    elif isinstance(value, str):
        given |= {"numpy": np.str_(value)}
    elif hasattr(value, "model_dump") or dataclasses.is_dataclass(value):
        given |= {"dict": plain_form(value), "json": json.dumps(plain_form(value), default=str)}
    elif isinstance(value, dict):
        proxy = python_types.MappingProxyType(value)
        given |= {"mapping": proxy, "str": json.dumps(value, default=str)}
    elif isinstance(value, list):
        given |= {"tuple": tuple(value), "generator": (one for one in value)}
        if all(isinstance(one, (int, float)) for one in value):
            given |= {"numpy": np.array(value), "str": list(map(str, value))}
            given["numbers"] = [np.array(one)[()] for one in value]
        elif not all(isinstance(one, str) for one in value):
            given |= {"dicts": [plain_form(one) for one in value]}
    is_numbers = isinstance(value, list) and "numpy" in given
    if HAS_TORCH and (isinstance(value, (bool, int, float)) or is_numbers):
        import torch

        given["tensor"] = torch.tensor(value)
    return given


def plain_form(value: object) -> object:
    """Return a value of the package as plain data."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if not dataclasses.is_dataclass(value):
        return value
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def stub_server() -> tuple[str, list[str]]:
    """Return the address of a server with new models as only results, and the paths asked for."""
    seen: list[str] = []
    names = ("session_id", "model_id", "sampling_session_id", "future_id")
    ids = dict.fromkeys(names, "m:train:0")

    def answer(path: str, body: bytes) -> tuple[int, dict]:
        if path.startswith("client/"):
            return 200, {}
        if path == "retrieve_future" and b"create_model" not in body:
            return 400, {"detail": "there is no such result"}
        if path == "retrieve_future":
            return 200, {"type": "create_model", "model_id": "m:train:0"}
        about = {"model_data": {"model_name": "b", "tokenizer_id": "b"}}
        return 200, {
            **ids,
            "request_id": path,
            "type": path,
            **(about if path == "get_info" else {}),
        }

    class Stub(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.split("?")[0].removeprefix("/api/v1/")
            seen.append(path)
            status, said = answer(path, body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", seen


TEXT = MI.from_ints([1, 2, 3])
INPUTS = {
    "target_tokens": TD(data=[2, 3, 4], dtype="int64", shape=[3]),
    "weights": TD(data=[1.0] * 3, dtype="float32", shape=[3]),
}
DATUM = D(model_input=TEXT, loss_fn_inputs=INPUTS)
CHECKPOINT = "tinker://m/weights/n"
ADAM = {
    "learning_rate": 0.5,
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1.0,
    "weight_decay": 0.5,
    "grad_clip_norm": 1.0,
}
MADE = {
    "EncodedTextChunk": (TC, {"tokens": [1, 2]}),
    "ImageChunk": (types.ImageChunk, {"data": "aGk=", "format": "png", "expected_tokens": 3}),
    "ImageAssetPointerChunk": (
        types.ImageAssetPointerChunk,
        {"format": "png", "location": "http://h/i", "expected_tokens": 3},
    ),
    "ModelInput": (MI, {"chunks": TEXT.chunks}),
    "ModelInput.from_ints": (MI.from_ints, {"tokens": [1, 2]}),
    "ModelInput.append": (TEXT.append, {"chunk": TEXT.chunks[0]}),
    "ModelInput.append_int": (TEXT.append_int, {"new_token": 4}),
    "TensorData": (TD, {"data": [1, 2], "dtype": "int64", "shape": [2]}),
    "Datum": (D, {"model_input": TEXT, "loss_fn_inputs": INPUTS}),
    "Datum(list)": (lambda weights: loss_input(weights), {"weights": [1.0, 2.0, 3.0]}),
    "Datum(int list)": (
        lambda target_tokens: loss_input(target_tokens, "target_tokens"),
        {"target_tokens": [1, 2, 3]},
    ),
    "SamplingParams": (
        types.SamplingParams,
        {"max_tokens": 3, "seed": 1, "stop": ["x"], "temperature": 0.5, "top_k": 5, "top_p": 0.5},
    ),
    "SamplingParams(ids)": (types.SamplingParams, {"stop": [1, 2]}),
    "AdamParams": (types.AdamParams, ADAM),
    "LoraConfig": (
        types.LoraConfig,
        {"rank": 8, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True},
    ),
    "SampledProvenanceSpan": (
        types.SampledProvenanceSpan,
        {"sequence_id": "s", "offset": 0, "length": 3},
    ),
}
KEPT = {"name": "n", "ttl_seconds": 3600}
#: Calls of clients: the operation that follows, and the arguments.
TRAINED = {
    "forward": (
        "forward_backward",
        {"data": [DATUM], "loss_fn": "cross_entropy", "loss_fn_config": {"a": 0.5}},
    ),
    "forward_backward": (
        "forward_backward",
        {"data": [DATUM], "loss_fn": "cross_entropy", "loss_fn_config": {"a": np.float64(0.5)}},
    ),
    "optim_step": ("optim_step", {"optim_params": types.AdamParams(learning_rate=0.5)}),
    "save_state": ("save_weights", {**KEPT, "overwrite": True, "user_metadata": {"a": "b"}}),
    "save_weights_for_sampler": (
        "save_weights_for_sampler",
        {**KEPT, "user_metadata": {"a": "b"}},
    ),
    "save_weights_external": (
        "save_weights_external",
        {**KEPT, "age_encryption_recipients": ["age1"]},
    ),
    "load_state": ("load_weights", {"path": CHECKPOINT, "weights_access_token": "t"}),
}
SAMPLED = {
    "sample": (
        "asample",
        {
            "prompt": TEXT,
            "num_samples": 1,
            "sampling_params": types.SamplingParams(max_tokens=3),
            "include_prompt_logprobs": True,
            "topk_prompt_logprobs": 1,
            "topk_sample_logprobs": 1,
            "target_prompt_logprobs": TD(data=[1, 2], dtype="int64", shape=[2, 1]),
            "prompt_alt_tokens_k": 1,
            "prompt_logprobs_last_n": 1,
        },
    ),
    "compute_logprobs": ("asample", {"prompt": TEXT, "prompt_logprobs_last_n": 1}),
}
ASKED = {
    "list_training_runs": ("training_runs", {"limit": 2, "offset": 1}),
    "list_user_checkpoints": ("checkpoints", {"limit": 2, "offset": 1}),
    "list_sessions": ("sessions", {"limit": 2, "offset": 1}),
    "get_training_run": ("training_runs/r", {"training_run_id": "r"}),
    "set_checkpoint_ttl_from_tinker_path": (
        "training_runs/m/checkpoints/weights/n/ttl",
        {"tinker_path": CHECKPOINT, "ttl_seconds": 3600},
    ),
}
CREATED = {
    "create_lora_training_client": (
        "create_model",
        {"base_model": "b", **MADE["LoraConfig"][1], "user_metadata": {"a": "b"}},
    )
}


def argument_probes() -> dict[str, str]:
    """For each argument and form: "taken", also by the stub of a server, or what refuses it."""
    address, seen = stub_server()
    service = tinker.ServiceClient(base_url=address, api_key="tml-key")
    rest = service.create_rest_client()

    def build(make: typing.Callable, given: dict, *, by_name: bool) -> str:
        try:
            make(**given) if by_name else make(*given.values())
        except BaseException as error:
            return f"refused: {type(error).__name__}"
        return "taken"

    def send(client: typing.Callable, method: str, operation: str, given: dict) -> str:
        seen.clear()
        refused = "nothing was sent"
        try:
            future = getattr(client(), method)(**given)
            end = time.monotonic() + 10
            while operation not in seen and time.monotonic() < end:
                if getattr(future, "done", lambda: False)():
                    future.result()
                time.sleep(0.002)
        except BaseException as error:
            refused = type(error).__name__
        return "taken" if operation in seen else f"refused: {refused}"

    def each_form(name: str, values: dict, judge: typing.Callable[[dict], str]) -> dict[str, str]:
        return {
            f"{name}({argument}={form})": judge({**values, argument: other})
            for argument, value in values.items()
            for form, other in forms(value).items()
        }

    found: dict[str, str] = {}
    for name, (make, values) in MADE.items():
        found |= each_form(name, values, functools.partial(build, make, by_name="." not in name))
    for client, calls in (
        (lambda: service, CREATED),
        (lambda: service.create_lora_training_client("b"), TRAINED),
        (lambda: service.create_sampling_client(base_model="b"), SAMPLED),
        (lambda: rest, ASKED),
    ):
        for name, (operation, values) in calls.items():
            found |= each_form(name, values, functools.partial(send, client, name, operation))
    return found


def main(out: str) -> None:
    logging.disable(logging.CRITICAL)
    surface = {
        "version": tinker.__version__,
        "groups": {name: describe_exports(name) for name in GROUPS},
        "private": {name: describe_private(name, wanted) for name, wanted in PRIVATE.items()},
        "paths": list_names(),
        "package": describe_package(),
        "cli": command_tree(),
        "cli_exit_codes": {name: end_of_command(words) for name, words in COMMANDS.items()},
        "probes": probes(),
        "arguments": argument_probes(),
    }
    with open(out, "w") as file:
        json.dump(surface, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
