#!/usr/bin/env python3
"""Introspect the public surface of whatever `tinker` package is importable.

Usage:
    python introspect_surface.py OUT.json
    PYTHONPATH=/path/to/other/impl python introspect_surface.py OUT.json

The output is compared with compare.py.  Nothing outside this machine is asked.  Groups written:

  tinker, tinker.types, tinker.auth, tinker.resources, tinker.lib.public_interfaces
      exported name -> description (kind, bases, ctor, fields, methods, ...)
  private   non-public modules/names that the official docs, the cookbook or the
            official test-suite import (description of each)
  paths     every module of the package: its public names, and whether each is the package's own
  modules   every importable submodule path (names only)
  package   distribution metadata: requires, extras, console scripts
  cli       the whole click tree (or, failing that, parsed --help output)
  probes    small offline behaviour probes (hash/eq/pickle/deepcopy/frozen/...)
  arguments which forms of each argument are taken (dict, numpy, tensor, str, ...), of types and of the clients' methods,
            which talk to a stub of a server on loopback
  cli_probes  offline CLI invocations: exit code, stdout, stderr

An object reached under several names is described once (first name wins) and later
occurrences carry {"ref": "group:name"}.
"""

from __future__ import annotations

import abc
import ast
import asyncio
import dataclasses
import enum
import functools
import importlib
import importlib.metadata as ilm
import inspect
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import types as _pytypes
import typing
import warnings

warnings.simplefilter("ignore")

PKG = "tinker"
WIRE = "tinker_wire"
RECORDS = "tinker_records"
GROUPS = [
    "tinker",
    "tinker.types",
    "tinker.auth",
    "tinker.resources",
    "tinker.lib.public_interfaces",
]

# Private import targets other people's code uses: [cookbook], [tests] = official
# test-suite of ~0.25, [docs].  None = every public name of the module.
PRIVATE: dict[str, list[str] | None] = {
    "tinker._version": ["__version__", "__title__"],
    "tinker._client": ["AsyncTinker", "RequestOptions", "Timeout"],
    "tinker._exceptions": None,
    "tinker._models": ["BaseModel", "StrictBase"],
    "tinker._types": ["NOT_GIVEN", "NotGiven", "NoneType", "Omit"],
    "tinker._constants": None,
    "tinker._compat": ["PYDANTIC_V2", "ConfigDict", "model_dump", "model_copy"],
    "tinker.lib.public_interfaces.api_future": ["APIFuture", "AwaitableConcurrentFuture"],
    "tinker.lib.public_interfaces.rest_client": ["RestClient"],
    "tinker.lib.public_interfaces.service_client": ["ServiceClient"],
    "tinker.lib.public_interfaces.sampling_client": ["SamplingClient"],
    "tinker.lib.public_interfaces.training_client": ["TrainingClient", "CustomLossFnV1"],
    "tinker.lib.public_interfaces.admin_client": ["AdminClient"],
    "tinker.lib.public_interfaces.custom_loss": ["LossHandle", "PerDatumLossFn"],
    "tinker.lib.retry_handler": ["RetryConfig", "RetryHandler", "is_retryable_status_code"],
    "tinker.lib.retryable_exception": ["RetryableException"],
    "tinker.lib.api_future_impl": ["QueueState", "QueueStateObserver"],
    "tinker.lib.internal_client_holder": ["InternalClientHolder"],
    "tinker.lib.chunked_fwdbwd_helpers": ["combine_fwd_bwd_output_results", "REDUCE_MAP"],
    "tinker.lib.telemetry": ["Telemetry", "capture_exceptions", "init_telemetry", "is_user_error"],
    "tinker.lib.telemetry_provider": ["TelemetryProvider"],
    "tinker.lib.sync_only": ["sync_only"],
    "tinker.lib.experimental": ["ExperimentalWarning", "experimental"],
    "tinker.lib.client_connection_pool_type": ["ClientConnectionPoolType"],
    "tinker.lib.credentials": [
        "JsonCredentialStore",
        "CredentialStore",
        "ManualKey",
        "GeneratedKey",
        "StoredCredentialsV1",
        "default_credentials_path",
    ],
    "tinker.lib.base_url": ["DEFAULT_BASE_URL", "resolve_base_url"],
    "tinker.lib.console_urls": None,
    "tinker.types.tensor_data": ["TensorData"],
    "tinker.types.image_chunk": ["ImageChunk"],
    "tinker.types.dmel_chunk": ["DmelChunk"],
    "tinker.types.encoded_text_chunk": ["EncodedTextChunk"],
    "tinker.types.image_asset_pointer_chunk": ["ImageAssetPointerChunk"],
    "tinker.types.datum": ["Datum"],
    "tinker.types.model_input": ["ModelInput"],
    "tinker.types.topk_logprobs": ["TopkLogprobs", "MASK_LOGPROB", "topk_to_lists"],
    "tinker.types.try_again_response": ["TryAgainResponse"],
    "tinker.types.generic_event": ["GenericEvent"],
    "tinker.types.shared.untyped_api_future": ["UntypedAPIFuture"],
    "tinker.types._tensor_container": ["tensor_container_shape", "tensor_container_dim"],
    "tinker.cli.context": ["CLIContext"],
    "tinker.cli.exceptions": ["TinkerCliError"],
    "tinker.cli.output": [
        "OutputBase",
        "format_size",
        "format_timestamp",
        "format_bool",
        "format_optional",
    ],
}

DUNDERS = [
    "__eq__",
    "__hash__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__await__",
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__str__",
    "__repr__",
    "__getattr__",
    "__iter__",
    "__len__",
    "__call__",
    "__del__",
    "__post_init__",
    "__bool__",
    "__deepcopy__",
    "__copy__",
    "__contains__",
    "__getitem__",
    "__add__",
]

_CWD = os.getcwd()
_seen: dict[int, str] = {}
_keep: list[object] = []  # keep described objects alive so ids stay unique


# ----------------------------------------------------------------------------- rendering


def ann_str(a: object) -> str | None:
    if a is inspect.Parameter.empty or a is inspect.Signature.empty:
        return None
    if isinstance(a, str):
        return a
    if a is None or a is type(None):
        return "None"
    try:
        s = inspect.formatannotation(a)
    except Exception:
        s = repr(a)
    return re.sub(r"ForwardRef\('([^']*)'(?:, [^)]*)?\)", r"\1", s)


def default_str(v: object) -> str:
    if isinstance(v, (str, int, float, bool, type(None), bytes, tuple, list, dict, set, frozenset)):
        if isinstance(v, tuple) and any(isinstance(x, type) for x in v):
            return "(" + ", ".join(x.__name__ if isinstance(x, type) else repr(x) for x in v) + ")"
        return re.sub(r" at 0x[0-9a-f]+", "", repr(v))
    if isinstance(v, type):
        return v.__name__
    if isinstance(v, enum.Enum):
        return f"{type(v).__name__}.{v.name}"
    if callable(v):
        return f"<callable {getattr(v, '__name__', type(v).__name__)}>"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(v))


def sig_dict(f: object, drop_first: bool = False) -> dict | None:
    try:
        s = inspect.signature(f)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    ps = list(s.parameters.values())
    if drop_first and ps:
        ps = ps[1:]
    out = []
    for p in ps:
        d: dict = {"name": p.name, "kind": p.kind.name}
        if p.default is not inspect.Parameter.empty:
            d["default"] = default_str(p.default)
        if (a := ann_str(p.annotation)) is not None:
            d["annotation"] = a
        out.append(d)
    return {"params": out, "returns": ann_str(s.return_annotation)}


def sig_text(sig: dict | None) -> str:
    if sig is None:
        return "(?)"
    parts, star = [], False
    for p in sig["params"]:
        n = p["name"]
        if p["kind"] == "VAR_POSITIONAL":
            n, star = "*" + n, True
        elif p["kind"] == "VAR_KEYWORD":
            n = "**" + n
        elif p["kind"] == "KEYWORD_ONLY" and not star:
            parts.append("*")
            star = True
        t = n
        if "annotation" in p:
            t += f": {p['annotation']}"
        if "default" in p:
            t += f" = {p['default']}"
        parts.append(t)
    r = f" -> {sig['returns']}" if sig.get("returns") else ""
    return "(" + ", ".join(parts) + ")" + r


def is_async(f: object) -> bool:
    try:
        if asyncio.iscoroutinefunction(f) or inspect.iscoroutinefunction(f):
            return True
        return inspect.iscoroutinefunction(inspect.unwrap(f))  # type: ignore[arg-type]
    except Exception:
        return False


def deprecated_msg(f: object) -> str | None:
    m = getattr(f, "__deprecated__", None)
    return m if isinstance(m, str) else None


def is_typing_alias(o: object) -> bool:
    if isinstance(o, (_pytypes.GenericAlias, _pytypes.UnionType)):
        return True
    return type(o).__module__ in ("typing", "typing_extensions") and not isinstance(o, type)


def literal_values(o: object) -> list | None:
    if typing.get_origin(o) is typing.Literal or "Literal" in str(typing.get_origin(o)):
        return [default_str(x) for x in typing.get_args(o)]
    return None


def literals(o: object) -> list | None:
    """Return the literal values of a type that may be open to others, or None."""
    if isinstance(o, str):
        found = re.search(r"Literal\[([^\]]*)\]", o)
        return found and [repr(ast.literal_eval(v)) for v in found[1].split(",")]
    for one in (o, *typing.get_args(o)):
        if (lv := literal_values(one)) is not None:
            return lv
    return None


def alias_members(o: object) -> list[str] | None:
    origin = typing.get_origin(o)
    if origin is typing.Annotated:
        return alias_members(typing.get_args(o)[0])
    if origin is typing.Union or isinstance(o, _pytypes.UnionType):
        return sorted(short(ann_str(a) or "") for a in typing.get_args(o))
    return None


def short(s: str) -> str:
    return re.sub(r"\b(?:[A-Za-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", s)


def own_class(c: type) -> bool:
    return (c.__module__ or "").split(".")[0] in (PKG, WIRE, RECORDS)


# ----------------------------------------------------------------------------- classes


def flavour(c: type) -> str:
    import pydantic

    if issubclass(c, enum.Enum):
        return "enum"
    if issubclass(c, Warning):
        return "warning"
    if issubclass(c, BaseException):
        return "exception"
    if issubclass(c, pydantic.BaseModel):
        return "pydantic"
    if dataclasses.is_dataclass(c):
        return "dataclass"
    if getattr(c, "__total__", None) is not None and issubclass(c, dict):
        return "typeddict"
    if getattr(c, "_is_protocol", False):
        return "protocol"
    if inspect.isabstract(c) or abc.ABC in c.__mro__:
        return "abc"
    return "plain"


def attrs_fields(c: type) -> dict | None:
    a = getattr(c, "__attrs_attrs__", None)
    if not a:
        return None
    return {
        f.name: {
            "annotation": ann_str(f.type) if f.type is not None else None,
            "required": type(f.default).__name__ == "_Nothing",
            "default": default_str(f.default),
        }
        for f in a
    }


def pydantic_fields(c: type) -> dict:
    from pydantic_core import PydanticUndefined

    out = {}
    for n, f in c.model_fields.items():  # type: ignore[attr-defined]
        d: dict = {"annotation": ann_str(f.annotation), "required": f.is_required()}
        if not f.is_required():
            if f.default_factory is not None:
                d["default_factory"] = getattr(f.default_factory, "__name__", "factory")
                try:
                    d["default"] = default_str(f.default_factory())  # type: ignore[call-arg]
                except Exception:
                    pass
            elif f.default is not PydanticUndefined:
                d["default"] = default_str(f.default)
        if f.alias:
            d["alias"] = f.alias
        if f.validation_alias is not None and f.validation_alias != f.alias:
            va = f.validation_alias
            d["validation_alias"] = [str(x) for x in getattr(va, "choices", [va])]
        if f.metadata:
            # validation constraints only (Ge, Lt, MinLen, ...); SDK-internal markers are not API
            cons = sorted(
                repr(m)
                for m in f.metadata
                if type(m).__module__.split(".")[0] in ("annotated_types", "pydantic")
            )
            if cons:
                d["metadata"] = [re.sub(r" at 0x[0-9a-f]+", "", c) for c in cons]
        lv = literal_values(f.annotation)
        if lv:
            d["literal_values"] = lv
        out[n] = d
    return out


def dataclass_fields(c: type) -> dict:
    out = {}
    for f in dataclasses.fields(c):
        d: dict = {
            "annotation": ann_str(f.type),
            "init": f.init,
            "repr": f.repr,
            "compare": f.compare,
            "kw_only": bool(f.kw_only),
            "private": f.name.startswith("_"),
        }
        if f.default is not dataclasses.MISSING:
            d["default"] = default_str(f.default)
        if f.default_factory is not dataclasses.MISSING:  # type: ignore[misc]
            d["default_factory"] = getattr(f.default_factory, "__name__", "factory")
            if WIRE in sys.modules:
                d["default"] = default_str(f.default_factory())
        if WIRE in sys.modules and (lv := literals(f.type)):
            d["literal_values"] = lv
        d["required"] = "default" not in d and "default_factory" not in d
        out[f.name] = d
    return out


def describe_member(c: type, name: str) -> dict | None:
    for k in c.__mro__:
        if name in vars(k):
            raw, owner = vars(k)[name], k
            break
    else:
        return None
    d: dict = {"defined_in": owner.__name__}
    if isinstance(raw, staticmethod):
        f = raw.__func__
        d |= {"kind": "staticmethod", "sig": sig_dict(f), "async": is_async(f)}
    elif isinstance(raw, classmethod):
        f = raw.__func__
        d |= {"kind": "classmethod", "sig": sig_dict(f, drop_first=True), "async": is_async(f)}
    elif isinstance(raw, property):
        f = raw.fget
        d |= {
            "kind": "property",
            "returns": (sig_dict(f) or {}).get("returns"),
            "settable": raw.fset is not None,
        }
    elif isinstance(raw, functools.cached_property) or type(raw).__name__ == "cached_property":
        f = raw.func
        d |= {"kind": "cached_property", "returns": (sig_dict(f) or {}).get("returns")}
    elif inspect.isfunction(raw) or inspect.ismethoddescriptor(raw) or inspect.isbuiltin(raw):
        f = raw
        d |= {"kind": "method", "sig": sig_dict(f, drop_first=True), "async": is_async(f)}
    else:
        return None
    if (m := deprecated_msg(f)) is not None:
        d["deprecated"] = m
    if "sig" in d:
        d["text"] = sig_text(d["sig"])
    return d


PYDANTIC_NOISE = {
    "model_config",
    "model_fields",
    "model_computed_fields",
    "model_extra",
    "model_fields_set",
    "model_post_init",
    "model_rebuild",
    "model_parametrized_name",
    "model_json_schema",
    "model_construct",
    "model_copy",
    "model_dump",
    "model_dump_json",
    "model_validate",
    "model_validate_json",
    "model_validate_strings",
    "construct",
    "copy",
    "dict",
    "json",
    "from_orm",
    "parse_file",
    "parse_obj",
    "parse_raw",
    "schema",
    "schema_json",
    "update_forward_refs",
    "validate",
}


def describe_class(c: type) -> dict:
    fl = flavour(c)
    d: dict = {
        "kind": "class",
        "flavour": fl,
        "module": c.__module__,
        "qualname": c.__qualname__,
        "bases": [short(ann_str(b) or "") for b in getattr(c, "__orig_bases__", c.__bases__)],
        "mro": [k.__name__ for k in c.__mro__],
        "hashable": c.__hash__ is not None,
        "abstract_methods": sorted(getattr(c, "__abstractmethods__", ()) or ()),
    }
    if fl == "pydantic":
        d["fields"] = pydantic_fields(c)
        cfg = dict(getattr(c, "model_config", {}))
        d["config"] = {k: default_str(cfg[k]) for k in sorted(cfg)}
        d["ctor"] = sig_dict(c)
    elif fl == "dataclass":
        d["fields"] = dataclass_fields(c)
        p = getattr(c, "__dataclass_params__", None)
        if p is not None:
            d["dataclass_params"] = {
                k: getattr(p, k) for k in ("init", "repr", "eq", "order", "unsafe_hash", "frozen")
            }
            d["dataclass_params"]["slots"] = "__slots__" in vars(c)
        d["ctor"] = sig_dict(c.__init__, drop_first=True)
    elif fl == "enum":
        d["members"] = {m.name: default_str(m.value) for m in c}  # type: ignore[attr-defined]
    elif fl == "typeddict":
        d["fields"] = {
            k: {"annotation": ann_str(v), "required": k in c.__required_keys__}  # type: ignore[attr-defined]
            for k, v in c.__annotations__.items()
        }
    elif (af := attrs_fields(c)) is not None:
        d["flavour"] = "attrs"
        d["fields"] = af
        d["ctor"] = sig_dict(c.__init__, drop_first=True)
    else:
        d["ctor"] = sig_dict(c.__init__, drop_first=True)
    if d.get("ctor"):
        d["ctor_text"] = sig_text(d["ctor"])

    field_names = set(d.get("fields", ()))
    methods, properties, attrs = {}, {}, {}
    names = set()
    for k in c.__mro__:
        if own_class(k):
            names |= {n for n in vars(k) if not n.startswith("_")}
    for n in sorted(names):
        if fl == "pydantic" and (n in PYDANTIC_NOISE or n in field_names):
            continue
        if n in field_names and fl == "dataclass":
            raw = c.__dict__.get(n)
            if not isinstance(raw, (property, functools.cached_property)):
                continue
        if fl == "enum" and n in d["members"]:
            continue
        m = describe_member(c, n)
        if m is None:
            v = getattr(c, n, None)
            if not n.startswith("_") and isinstance(v, (str, int, float, bool, type(None), tuple)):
                attrs[n] = default_str(v)
            continue
        if m["kind"] in ("property", "cached_property"):
            properties[n] = m
        else:
            methods[n] = m
    d["methods"], d["properties"], d["attributes"] = methods, properties, attrs
    d["annotations"] = {
        n: short(ann_str(a) or "")
        for k in reversed(c.__mro__)
        if own_class(k) and fl not in ("pydantic", "dataclass", "typeddict")
        for n, a in vars(k).get("__annotations__", {}).items()
        if not n.startswith("_")
    }
    d["dunders"] = sorted(
        n for n in DUNDERS if any(own_class(k) and n in vars(k) for k in c.__mro__)
    )
    if (m := deprecated_msg(c)) is not None:
        d["deprecated"] = m
    return d


# ----------------------------------------------------------------------------- objects


def describe(o: object, where: str) -> dict:
    if inspect.ismodule(o) or type(o).__name__ == "ResourcesProxy":
        return {"kind": "module"}
    trackable = isinstance(o, type) or inspect.isfunction(o) or is_typing_alias(o)
    if trackable and id(o) in _seen:
        return {"kind": kind_of(o), "ref": _seen[id(o)]}
    if trackable:
        _seen[id(o)] = where
        _keep.append(o)
    if isinstance(o, type) and not is_typing_alias(o):
        if not own_class(o):
            return {"kind": "class", "external": f"{o.__module__}.{o.__qualname__}"}
        return describe_class(o)
    if inspect.isfunction(o) or inspect.isbuiltin(o):
        d = {"kind": "function", "sig": sig_dict(o), "async": is_async(o)}
        d["text"] = sig_text(d["sig"])
        if (m := deprecated_msg(o)) is not None:
            d["deprecated"] = m
        return d
    if is_typing_alias(o):
        d = {"kind": "typealias", "text": short(ann_str(o) or repr(o))}
        if (lv := (literals if WIRE in sys.modules else literal_values)(o)) is not None:
            d["literal_values"] = lv
        if (mem := alias_members(o)) is not None:
            d["members"] = mem
        return d
    if callable(o) and not isinstance(o, (str, int)):
        d = {"kind": "callable", "sig": sig_dict(o)}
        return d
    v = default_str(o)
    return {"kind": "value", "type": type(o).__name__, "value": v if len(v) < 400 else v[:400]}


def kind_of(o: object) -> str:
    if isinstance(o, type) and not is_typing_alias(o):
        return "class"
    if inspect.isfunction(o):
        return "function"
    return "typealias"


def public_names(mod: _pytypes.ModuleType) -> tuple[list[str], list[str]]:
    declared = list(getattr(mod, "__all__", []))
    other = []
    for n in dir(mod):
        if n.startswith("_") or n in declared:
            continue
        v = getattr(mod, n, None)
        if inspect.ismodule(v):
            if (v.__name__ or "").split(".")[0] == PKG:
                other.append(n)
            continue
        m = getattr(v, "__module__", None)
        if n == "annotations" and type(v).__name__ == "_Feature":
            continue
        if isinstance(m, str) and m.split(".")[0] != PKG and not is_typing_alias(v):
            continue
        other.append(n)
    return declared, other


def group(modname: str) -> dict:
    try:
        mod = importlib.import_module(modname)
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}", "__all__": [], "exports": {}}
    declared, other = public_names(mod)
    exports = {}
    for n in declared + sorted(other):
        try:
            o = getattr(mod, n)
        except AttributeError:
            exports[n] = {"kind": "MISSING", "in_all": True}
            continue
        d = describe(o, f"{modname}:{n}")
        d["in_all"] = n in declared
        exports[n] = d
    return {"__all__": sorted(declared), "exports": exports}


def private_group() -> dict:
    out = {}
    for modname, names in PRIVATE.items():
        try:
            mod = importlib.import_module(modname)
        except Exception as e:
            out[modname] = {"error": f"{type(e).__name__}: {e}", "exports": {}}
            continue
        wanted = names
        if wanted is None:
            declared, other = public_names(mod)
            wanted = sorted(set(declared) | set(other))
            wanted = [
                n
                for n in wanted
                if getattr(getattr(mod, n, None), "__module__", modname) in (modname, PKG)
                or not hasattr(getattr(mod, n, None), "__module__")
            ]
        ex = {}
        for n in wanted:
            if not hasattr(mod, n):
                continue
            ex[n] = describe(getattr(mod, n), f"private:{modname}.{n}")
        out[modname] = {"exports": ex}
    return out


def module_list() -> list[str]:
    pkg = importlib.import_module(PKG)
    names = []
    for m in pkgutil.walk_packages(pkg.__path__, PKG + ".", onerror=lambda n: None):
        names.append(m.name)
    # namespace sub-packages (no __init__) are invisible to walk_packages
    for root in pkg.__path__:
        for d, _, fs in os.walk(root):
            if "__pycache__" in d:
                continue
            for f in fs:
                if f.endswith(".py"):
                    rel = os.path.relpath(os.path.join(d, f), root)[:-3].replace(os.sep, ".")
                    rel = re.sub(r"(^|\.)__init__$", "", rel)
                    names.append(PKG + ("." + rel if rel else ""))
    return sorted({n for n in names if not n.endswith("_test")})


def paths_group() -> dict:
    """Of every module that can be imported, whoever may do so: its public names, each with "own" or
    "other".
    """
    out = {}
    for modname in module_list():
        if modname.endswith("__main__"):
            continue
        try:
            mod = importlib.import_module(modname)
        except BaseException as e:
            out[modname] = {"error": f"{type(e).__name__}: {e}"}
            continue
        listed = set(getattr(mod, "__all__", ()))
        names = sorted({n for n in {*vars(mod), *dir(mod)} if not n.startswith("_")} | listed)
        out[modname] = {n: "own" if n in listed or is_own(mod, n) else "other" for n in names}
    return out


def is_own(mod: object, name: str) -> bool:
    """Whether a name is the package's: a class, function or alias of it, or a constant; no module,
    nothing of others.
    """
    value = getattr(mod, name, None)
    if inspect.ismodule(value) or value is getattr(_pytypes, name, _pytypes):
        return False
    origin = getattr(value, "__module__", None)
    if is_typing_alias(value):
        return (
            type(value).__name__ not in ("_SpecialForm", "TypedCacheSpecialForm")
            and str(value) != f"typing.{name}"
        )
    if origin is None or origin == "builtins":
        # of a class of Python under another name, as ModelID is, never its own
        named = getattr(value, "__name__", None)
        return (
            name not in ("annotations", "TYPE_CHECKING")
            and name != named
            and value is not type(None)
            and value is not typing.Any
        )
    return origin.split(".")[0] in (PKG, WIRE, RECORDS)


def package_info() -> dict:
    try:
        d = ilm.distribution(PKG)
    except ilm.PackageNotFoundError:
        return {"error": "no distribution metadata"}
    pkg = importlib.import_module(PKG)
    parents = {os.path.realpath(os.path.dirname(p)) for p in pkg.__path__}
    editable = '"editable": true' in (d.read_text("direct_url.json") or "").lower()
    if os.path.realpath(str(d.locate_file(""))) not in parents and not editable:
        return {
            "error": "the only 'tinker' distribution metadata belongs to another copy",
            "foreign_version": d.version,
            "imported_from": sorted(parents),
        }
    return {
        "name": d.metadata["Name"],
        "version": d.version,
        "requires_python": d.metadata.get("Requires-Python"),
        "requires": sorted(d.requires or []),
        "extras": sorted(d.metadata.get_all("Provides-Extra") or []),
        "entry_points": sorted(f"{e.group}:{e.name}={e.value}" for e in d.entry_points),
        "typed": any(str(f).endswith("py.typed") for f in (d.files or [])),
    }


# ----------------------------------------------------------------------------- CLI


def click_tree(cmd: object, path: str, out: dict) -> None:
    import click

    assert isinstance(cmd, click.Command)
    params = []
    for p in cmd.params:
        t = p.type
        e: dict = {
            "name": p.name,
            "param_type": p.param_type_name,
            "opts": sorted(p.opts),
            "secondary_opts": sorted(p.secondary_opts),
            "type": t.name if not isinstance(t, click.Choice) else "choice",
            "required": bool(p.required),
            "nargs": p.nargs,
            "multiple": bool(getattr(p, "multiple", False)),
            "is_flag": bool(getattr(p, "is_flag", False)),
        }
        if isinstance(t, click.Choice):
            e["choices"] = [str(c) for c in t.choices]
        dv = p.default
        e["default"] = None if dv is None or "UNSET" in repr(dv).upper() else default_str(dv)
        if getattr(p, "help", None):
            e["help"] = p.help
        params.append(e)
    ctx = click.Context(cmd, info_name=path)
    out[path] = {
        "kind": "group" if isinstance(cmd, click.Group) else "command",
        "short_help": cmd.get_short_help_str(limit=200),
        "help": inspect.cleandoc(cmd.help or ""),
        "help_option_names": list(ctx.help_option_names),
        "params": params,
    }
    if isinstance(cmd, click.Group):
        for n in cmd.list_commands(ctx):
            sub = cmd.get_command(ctx, n)
            if sub is not None:
                click_tree(sub, f"{path} {n}", out)


def find_click_root() -> object | None:
    import click

    for modname in ("tinker.cli.__main__", "tinker.cli", "tinker.cli.main"):
        try:
            mod = importlib.import_module(modname)
        except Exception:
            continue
        for n in ("main_cli", "cli", "main", "app"):
            o = getattr(mod, n, None)
            if isinstance(o, click.Command):
                return o
        for o in vars(mod).values():
            if isinstance(o, click.Group):
                return o
    return None


def run_cli(
    args: list[str], env: dict | None = None, cwd: str | None = None
) -> tuple[int, str, str]:
    e = dict(os.environ)
    for k in list(e):
        if k.startswith("TINKER_"):
            del e[k]
    e["COLUMNS"] = "100"
    e["HOME"] = cwd or "/nonexistent-home"
    if e.get("PYTHONPATH"):
        e["PYTHONPATH"] = os.pathsep.join(
            os.path.join(_CWD, p) for p in e["PYTHONPATH"].split(os.pathsep) if p
        )
    e.update(env or {})
    code = (
        "import sys; sys.argv=['tinker']+sys.argv[1:];"
        "import importlib.metadata as m;"
        "eps=[x for x in m.entry_points(group='console_scripts') if x.name=='tinker'];"
        "x=__import__('tinker.cli.__main__',fromlist=['cli']) if not eps else None;"
        "f=eps[0].load() if eps else getattr(x,'cli',None) or x.main;"
        "sys.exit(f())"
    )
    try:
        p = subprocess.run(
            [sys.executable, "-c", code, *args],
            capture_output=True,
            text=True,
            timeout=120,
            env=e,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
        )
        return p.returncode, p.stdout, p.stderr
    except subprocess.TimeoutExpired:
        return -999, "", "timeout"


def parse_help(text: str) -> tuple[list[str], list[dict]]:
    cmds, params, sect = [], [], None
    for line in text.splitlines():
        if re.match(r"^(\w[\w ]*):\s*$", line):
            sect = line.strip().rstrip(":").lower()
            continue
        if sect == "commands" and (m := re.match(r"^  (\S+)", line)):
            cmds.append(m.group(1))
        if sect == "options" and (m := re.match(r"^  (-.*?)(?:\s{2,}|$)", line)):
            opts = re.findall(r"(?<!\w)--?[\w-]+", m.group(1))
            if "--help" not in opts:
                params.append(
                    {
                        "name": opts[-1].lstrip("-").replace("-", "_"),
                        "param_type": "option",
                        "opts": sorted(opts),
                    }
                )
    return cmds, params


def help_tree(path: list[str], out: dict) -> None:
    rc, so, _ = run_cli([*path, "--help"])
    if rc != 0:
        return
    cmds, params = parse_help(so)
    out[" ".join(["tinker", *path])] = {
        "kind": "group" if cmds else "command",
        "params": params,
        "from_help": True,
    }
    for c in cmds:
        help_tree([*path, c], out)


def cli_info() -> dict:
    out: dict = {}
    try:
        root = find_click_root()
    except ImportError:
        root = None
    if root is not None:
        click_tree(root, "tinker", out)
    else:
        help_tree([], out)
    return out


CLI_PROBES: dict[str, list[str]] = {
    "no args": [],
    "--help": ["--help"],
    "-h": ["-h"],
    "version": ["version"],
    "--version": ["--version"],
    "unknown command": ["nosuch"],
    "bad format": ["-f", "xml", "version"],
    "json version": ["-f", "json", "version"],
    "checkpoint (no sub)": ["checkpoint"],
    "checkpoint info bad path": ["checkpoint", "info", "foo"],
    "checkpoint info no arg": ["checkpoint", "info"],
    "checkpoint publish bad path": ["checkpoint", "publish", "foo"],
    "checkpoint unpublish bad path": ["checkpoint", "unpublish", "foo"],
    "set-ttl bad path": ["checkpoint", "set-ttl", "foo", "--ttl", "3600"],
    "set-ttl neither": ["checkpoint", "set-ttl", "tinker://r/weights/1"],
    "set-ttl both": ["checkpoint", "set-ttl", "tinker://r/weights/1", "--ttl", "1", "--remove"],
    "delete nothing": ["checkpoint", "delete"],
    "delete both": ["checkpoint", "delete", "tinker://r/weights/1", "--run-id", "r"],
    "delete filter no run": ["checkpoint", "delete", "tinker://r/weights/1", "--type", "weights"],
    "download sampler path": ["checkpoint", "download", "tinker://r/sampler_weights/1"],
    "download bad path": ["checkpoint", "download", "foo"],
    "run list bad column": ["run", "list", "-c", "nope"],
    "run list no creds": ["run", "list"],
    "model list no creds": ["model", "list"],
    "auth status no creds": ["auth", "status"],
    "auth logout no creds": ["auth", "logout"],
    "auth whoami no creds": ["auth", "whoami"],
    "billing usage no args": ["billing", "usage"],
    "session export-trace no arg": ["session", "export-trace"],
}


def cli_probes() -> dict:
    import tempfile

    out = {}
    with tempfile.TemporaryDirectory() as td:
        for name, args in CLI_PROBES.items():
            rc, so, se = run_cli(args, cwd=td)
            out[name] = {
                "args": args,
                "rc": rc,
                "stdout": so[-3000:],
                "stderr": se.replace(td, "<cwd>")[-3000:],
            }
    return out


# ----------------------------------------------------------------------------- probes


#: Names of sampling parameters that programs take over from vLLM, transformers, TRL and OpenAI.
NAMES_OF_OTHER_LIBRARIES = (
    "best_of", "do_sample", "include_stop_str_in_output", "logit_bias", "logprobs", "max_length", "max_new_tokens", "min_tokens", "n",
    "prompt_logprobs", "return_logprobs", "skip_special_tokens", "stop_sequences", "stop_strings", "stop_token_ids", "top_logprobs",
)  # fmt: skip
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


def same_without(kind: type, name: str) -> dict:
    """Whether a value is the same with a name that its class does not have, for each way to make
    it. Warnings are not compared.
    """
    import pydantic

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
    """What `model_fields` says of fields: whether they are required, their default, whether the
    type is a type.
    """
    fields = {name: kind.model_fields[name] for name in names}
    return {
        name: [
            field.is_required(),
            str(field.get_default()).removesuffix(".0"),
            isinstance(field.annotation, str),
        ]
        for name, field in fields.items()
    }


def probes() -> dict:
    import contextlib
    import copy
    import logging
    import pickle
    import signal

    import numpy as np

    logging.disable(logging.CRITICAL)

    class Missing:
        """Stands in for a name the implementation lacks; using it fails that probe only."""

        def __init__(self, name: str) -> None:
            self._n = name

        def __getattr__(self, k: str):
            if k.startswith("__"):
                raise AttributeError(k)
            raise AttributeError(f"missing {self._n}.{k}")

        def __call__(self, *a, **k):
            raise AttributeError(f"missing {self._n}")

    class Soft:
        """A module whose absent names become Missing."""

        def __init__(self, mod, name: str) -> None:
            self._m, self._n = mod, name

        def __getattr__(self, k: str):
            try:
                return getattr(self._m, k)
            except AttributeError:
                return Missing(f"{self._n}.{k}")

    def module(name: str):
        try:
            return importlib.import_module(name)
        except Exception:
            return None

    def has(o, k: str) -> bool:
        return not isinstance(getattr(o, k), Missing)

    tinker = Soft(module("tinker"), "tinker")
    T = Soft(module("tinker.types"), "tinker.types")

    out: dict[str, str] = {}

    def norm(v: object) -> str:
        if isinstance(v, np.ndarray):
            return f"ndarray({v.dtype},{v.tolist()})"
        if type(v).__module__ == "torch" and type(v).__name__ == "Tensor":
            return f"tensor({v.dtype},{v.tolist()})"  # type: ignore[attr-defined]
        r = re.sub(r" at 0x[0-9a-f]+", "", repr(v))
        return r[:600]

    class ProbeTimeout(BaseException):
        pass

    def on_alarm(*_):
        raise ProbeTimeout

    signal.signal(signal.SIGALRM, on_alarm)

    def probe(name: str, fn) -> None:
        signal.setitimer(signal.ITIMER_REAL, 10)
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                warnings.catch_warnings(record=True) as w,
            ):
                warnings.simplefilter("always")
                r = norm(fn())
            ws = sorted({x.category.__name__ for x in w})
            out[name] = "ok: " + r + (f" [warns {','.join(ws)}]" if ws else "")
        except BaseException as e:
            msg = str(e).splitlines()[0] if str(e) else ""
            if type(e).__name__ == "ValidationError":
                try:
                    msg = "; ".join(sorted({x["type"] for x in e.errors()}))  # type: ignore[attr-defined]
                except Exception:
                    pass
            out[name] = f"raises {type(e).__name__}: {msg[:300]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def roundtrip(o):
        return pickle.loads(pickle.dumps(o))

    def build(fn):  # a fixture that may not be constructible in another implementation
        try:
            return fn()
        except BaseException:
            return None

    MI, TC, TD = tinker.ModelInput, tinker.EncodedTextChunk, tinker.TensorData
    mi = build(lambda: MI.from_ints([1, 2, 3]))
    # --- ModelInput / chunks
    probe("mi.length", lambda: mi.length)
    probe("mi.to_ints", lambda: mi.to_ints())
    probe("mi.repr", lambda: repr(mi))
    probe("mi.str", lambda: str(mi))
    probe("mi.eq", lambda: mi == MI.from_ints([1, 2, 3]))
    probe("mi.neq", lambda: mi == MI.from_ints([1, 2]))
    probe("mi.hash", lambda: isinstance(hash(mi), int))
    probe("mi.frozen", lambda: setattr(mi, "chunks", []))
    probe("mi.extra", lambda: MI(chunks=[], foo=1))
    probe("mi.pickle", lambda: roundtrip(mi) == mi)
    probe("mi.deepcopy", lambda: copy.deepcopy(mi) == mi)
    probe("mi.copy_identity_chunks", lambda: copy.copy(mi).chunks is mi.chunks)
    probe("mi.model_dump", lambda: mi.model_dump())
    probe("mi.model_dump_json", lambda: mi.model_dump_json())
    probe("mi.model_copy", lambda: mi.model_copy(update={"chunks": []}))
    probe(
        "mi.model_validate",
        lambda: MI.model_validate({"chunks": [{"type": "encoded_text", "tokens": [5]}]}),
    )
    probe(
        "mi.model_validate_json",
        lambda: MI.model_validate_json(
            '{"chunks":[{"type":"image","data":"aGk=","format":"png"}]}'
        ),
    )
    probe("mi.model_fields", lambda: sorted(MI.model_fields))
    probe(
        "mi.append_int",
        lambda: (mi.append_int(4).to_ints(), mi.to_ints(), len(mi.append_int(4).chunks)),
    )
    probe("mi.append", lambda: mi.append(TC(tokens=[9])).to_ints())
    probe("mi.empty", lambda: (MI.empty().length, MI.empty().chunks, MI.empty().to_ints()))
    probe("mi.from_ints_np", lambda: MI.from_ints(np.array([1, 2])))
    probe("mi.from_ints_npints", lambda: MI.from_ints([np.int64(1), np.int32(2)]).to_ints())
    probe("mi.from_ints_tuple", lambda: MI.from_ints((1, 2)).chunks[0].tokens)
    probe("mi.from_ints_range", lambda: MI.from_ints(range(3)).chunks[0].tokens)
    probe("mi.from_ints_float", lambda: MI.from_ints([1.5]))
    probe("mi.from_ints_floatint", lambda: MI.from_ints([1.0]).to_ints())
    probe("mi.from_ints_str", lambda: MI.from_ints(["1"]).to_ints())
    probe("mi.from_ints_bool", lambda: MI.from_ints([True]).to_ints())
    probe("mi.from_ints_empty", lambda: (MI.from_ints([]).length, len(MI.from_ints([]).chunks)))
    probe(
        "mi.from_ints_aliases_list", lambda: (lambda l: MI.from_ints(l).chunks[0].tokens is l)([1])
    )
    probe("mi.from_ints_negative", lambda: MI.from_ints([-1]).to_ints())
    probe("tc.positional", lambda: TC([1]))
    probe("tc.tuple_hash", lambda: isinstance(hash(TC(tokens=(1, 2))), int))
    probe("tc.list_hash", lambda: isinstance(hash(TC(tokens=[1, 2])), int))
    probe("tc.type", lambda: TC(tokens=[1]).type)
    probe("tc.bad_type", lambda: TC(tokens=[1], type="image"))
    img = build(lambda: T.ImageChunk(data=b"abc", format="png"))
    probe("img.length_unset", lambda: img.length)
    probe("img.length", lambda: T.ImageChunk(data=b"abc", format="png", expected_tokens=7).length)
    probe("img.dump", lambda: img.model_dump())
    probe("img.b64str", lambda: T.ImageChunk(data="aGk=", format="jpeg").data)
    probe("img.badfmt", lambda: T.ImageChunk(data=b"", format="webp"))
    probe("img.required", lambda: T.ImageChunk(data=b""))
    probe("img.repr", lambda: repr(img))
    probe("img.hash", lambda: isinstance(hash(img), int))
    probe("mi.to_ints_image", lambda: MI(chunks=[img]).to_ints())
    probe("mi.length_image", lambda: MI(chunks=[img]).length)
    probe("iap.length_unset", lambda: T.ImageAssetPointerChunk(format="png", location="x").length)
    probe("dmel.length", lambda: T.DmelChunk(dmel=bytes([0, 2, 5, 80])).length)
    probe("dmel.empty", lambda: T.DmelChunk(dmel=b"").length)
    probe("mi.bad_chunk", lambda: MI(chunks=[{"type": "nope"}]))
    probe("mi.none_chunks", lambda: MI(chunks=None))
    probe("mi.tuple_chunks", lambda: type(MI(chunks=(TC(tokens=[1]),)).chunks).__name__)
    # --- TensorData
    td = build(lambda: TD(data=[1.0, 2.0, 3.0, 4.0], dtype="float32", shape=[2, 2]))
    probe("td.repr", lambda: repr(td))
    probe("td.str", lambda: str(td))
    probe("td.data", lambda: td.data)
    probe("td.data_type", lambda: type(td.data).__name__)
    probe("td.tolist", lambda: td.tolist())
    probe("td.to_numpy", lambda: td.to_numpy())
    probe("td.to_numpy_shares", lambda: td.to_numpy() is td.to_numpy())
    probe("td.eq_same", lambda: td == td)
    probe("td.eq_equal", lambda: td == TD(data=[1.0, 2.0, 3.0, 4.0], dtype="float32", shape=[2, 2]))
    probe("td.hash", lambda: isinstance(hash(td), int))
    probe("td.frozen", lambda: setattr(td, "dtype", "int64"))
    probe("td.frozen_data", lambda: setattr(td, "data", [1]))
    probe("td.pickle", lambda: roundtrip(td).tolist())
    probe(
        "td.deepcopy",
        lambda: (copy.deepcopy(td).tolist(), copy.deepcopy(td).to_numpy() is td.to_numpy()),
    )
    probe("td.no_args", lambda: TD())
    probe("td.no_dtype", lambda: TD(data=[1]))
    probe("td.dtype_only", lambda: TD(dtype="int64").tolist())
    probe("td.bad_dtype", lambda: TD(data=[1], dtype="float64"))
    probe(
        "td.noshape",
        lambda: (TD(data=[1, 2], dtype="int64").shape, TD(data=[1, 2], dtype="int64").tolist()),
    )
    probe(
        "td.noshape_nested",
        lambda: (TD(data=[[1, 2]], dtype="int64").shape, TD(data=[[1, 2]], dtype="int64").tolist()),
    )
    probe("td.bad_shape", lambda: TD(data=[1, 2, 3], dtype="int64", shape=[2, 2]))
    probe("td.scalar", lambda: TD(data=[5], dtype="int64", shape=[]).tolist())
    probe("td.positional", lambda: TD([1, 2], "int64", [2]).tolist())
    probe("td.float_to_int", lambda: TD(data=[1.7], dtype="int64").tolist())
    probe(
        "td.from_numpy_f64",
        lambda: (lambda t: (t.dtype, t.shape, str(t.to_numpy().dtype)))(
            TD.from_numpy(np.zeros((2, 3)))
        ),
    )
    probe(
        "td.from_numpy_i32",
        lambda: (lambda t: (t.dtype, t.shape, str(t.to_numpy().dtype)))(
            TD.from_numpy(np.zeros((2,), np.int32))
        ),
    )
    probe("td.from_numpy_u8", lambda: TD.from_numpy(np.zeros((2,), np.uint8)))
    probe("td.from_numpy_bool", lambda: TD.from_numpy(np.zeros((2,), bool)))
    probe("td.from_numpy_f16", lambda: TD.from_numpy(np.zeros((2,), np.float16)).dtype)
    probe("td.from_numpy_0d", lambda: (lambda t: (t.shape, t.data))(TD.from_numpy(np.array(3.0))))
    probe(
        "td.from_numpy_shares",
        lambda: (lambda a: TD.from_numpy(a).to_numpy() is a)(np.zeros(3, np.float32)),
    )
    probe(
        "td.from_numpy_readonly",
        lambda: (lambda a: (a.setflags(write=False), TD.from_numpy(a).to_numpy().flags.writeable))(
            np.zeros(3, np.float32)
        ),
    )
    probe(
        "td.sparse_ctor",
        lambda: (lambda t: (t.data, t.shape, t.sparse_crow_indices, t.sparse_col_indices))(
            TD(
                data=[7.0],
                dtype="float32",
                shape=[2, 3],
                sparse_crow_indices=[0, 1, 1],
                sparse_col_indices=[2],
            )
        ),
    )
    probe("td.model_dump", lambda: td.model_dump())
    probe("td.isdataclass", lambda: dataclasses.is_dataclass(td))
    probe("td.replace", lambda: dataclasses.replace(td, dtype="int64"))
    probe("td.asdict", lambda: sorted(dataclasses.asdict(td)))
    try:
        import torch

        probe(
            "td.from_torch",
            lambda: (lambda t: (t.dtype, t.shape, t.data))(TD.from_torch(torch.tensor([[1, 2]]))),
        )
        probe(
            "td.from_torch_bf16",
            lambda: (lambda t: (t.dtype, t.data))(
                TD.from_torch(torch.tensor([1.5], dtype=torch.bfloat16))
            ),
        )
        probe("td.from_torch_bool", lambda: TD.from_torch(torch.tensor([True])).dtype)
        probe("td.from_torch_grad", lambda: TD.from_torch(torch.ones(2, requires_grad=True)).data)
        probe(
            "td.from_torch_noncontig", lambda: TD.from_torch(torch.arange(6).reshape(2, 3).T).data
        )
        probe(
            "td.from_torch_shares",
            lambda: (
                lambda x: (
                    TD.from_torch(x),
                    x.add_(1),
                    TD.from_torch(x).to_torch().data_ptr() == x.data_ptr(),
                )[2]
            )(torch.zeros(3)),
        )
        probe("td.to_torch", lambda: td.to_torch())
        probe("td.to_torch_int", lambda: TD(data=[1], dtype="int64").to_torch())
        sp = torch.zeros(4, 8)
        sp[1, 2] = 3.0
        probe(
            "td.from_torch_sparse",
            lambda: (lambda t: (t.data, t.shape, t.sparse_crow_indices, t.sparse_col_indices))(
                TD.from_torch_sparse(sp)
            ),
        )
        probe(
            "td.from_torch_sparse_dense_fallback",
            lambda: TD.from_torch_sparse(torch.ones(2, 2)).sparse_crow_indices,
        )
        probe(
            "td.from_torch_sparse_1d",
            lambda: TD.from_torch_sparse(torch.zeros(9)).sparse_crow_indices,
        )
        probe(
            "td.from_torch_sparse_pad",
            lambda: (lambda t: (t.data, t.to_torch(-1).tolist()[0][:3]))(
                TD.from_torch_sparse(
                    torch.where(sp != 0, sp, torch.tensor(-1.0)).long(), pad_value=-1
                )
            ),
        )
        probe("td.pad_bool", lambda: TD.from_torch_sparse(sp, pad_value=True))
        probe("td.sparse_tolist", lambda: TD.from_torch_sparse(sp).tolist())
        probe(
            "datum.torch_2d_weights_sparse",
            lambda: (
                tinker.Datum(model_input=mi, loss_fn_inputs={"weights": sp})
                .loss_fn_inputs["weights"]
                .sparse_crow_indices
            ),
        )
        probe(
            "datum.torch_2d_other_dense",
            lambda: (
                tinker.Datum(model_input=mi, loss_fn_inputs={"advantages": sp})
                .loss_fn_inputs["advantages"]
                .sparse_crow_indices
            ),
        )
    except ImportError:
        probe("td.to_torch_without_torch", lambda: td.to_torch())
    # --- Datum
    D = tinker.Datum
    d = build(
        lambda: D(model_input=mi, loss_fn_inputs={"target_tokens": [1, 2, 3], "weights": [0, 1, 1]})
    )
    probe(
        "datum.dtypes", lambda: {k: (v.dtype, v.shape, v.data) for k, v in d.loss_fn_inputs.items()}
    )
    probe("datum.unknown_key_list", lambda: D(model_input=mi, loss_fn_inputs={"foo": [1.0]}))
    probe(
        "datum.unknown_key_np",
        lambda: D(model_input=mi, loss_fn_inputs={"foo": np.zeros(2)}).loss_fn_inputs["foo"].dtype,
    )
    probe(
        "datum.int_weights_np",
        lambda: (
            D(model_input=mi, loss_fn_inputs={"weights": np.array([1, 0])})
            .loss_fn_inputs["weights"]
            .dtype
        ),
    )
    probe(
        "datum.ragged", lambda: D(model_input=mi, loss_fn_inputs={"weights": [[1.0], [1.0, 2.0]]})
    )
    probe(
        "datum.nested",
        lambda: (
            D(model_input=mi, loss_fn_inputs={"target_tokens": [[1, 2], [3, 4]]})
            .loss_fn_inputs["target_tokens"]
            .shape
        ),
    )
    probe(
        "datum.empty_list",
        lambda: (lambda t: (t.dtype, t.shape))(
            D(model_input=mi, loss_fn_inputs={"target_tokens": []}).loss_fn_inputs["target_tokens"]
        ),
    )
    probe(
        "datum.bool_list",
        lambda: (
            D(model_input=mi, loss_fn_inputs={"weights": [True, False]})
            .loss_fn_inputs["weights"]
            .data
        ),
    )
    probe("datum.str_list", lambda: D(model_input=mi, loss_fn_inputs={"weights": ["a"]}))
    probe("datum.tuple", lambda: D(model_input=mi, loss_fn_inputs={"weights": (1.0,)}))
    probe(
        "datum.model_input_value", lambda: D(model_input=mi, loss_fn_inputs={"target_tokens": mi})
    )
    probe("datum.scalar", lambda: D(model_input=mi, loss_fn_inputs={"weights": 1.0}))
    probe(
        "datum.all_keys",
        lambda: {
            k: D(model_input=mi, loss_fn_inputs={k: [1]}).loss_fn_inputs[k].dtype
            for k in (
                "target_tokens",
                "weights",
                "advantages",
                "logprobs",
                "clip_low_threshold",
                "clip_high_threshold",
                "sequence_ratio_mask",
            )
        },
    )
    probe("datum.default_inputs", lambda: D(model_input=mi).loss_fn_inputs)
    probe("datum.positional", lambda: D(mi, {"weights": [1.0]}).loss_fn_inputs["weights"].data)
    probe(
        "datum.bad_model_input",
        lambda: type(D(model_input="x", loss_fn_inputs={}).model_input).__name__,
    )
    probe("datum.frozen", lambda: setattr(d, "model_input", mi))
    probe(
        "datum.mutable_inputs",
        lambda: (d.loss_fn_inputs.__setitem__("x", td), d.loss_fn_inputs.pop("x") is td)[1],
    )
    probe("datum.eq_same", lambda: d == d)
    probe("datum.eq_copy", lambda: d == copy.deepcopy(d))
    probe("datum.hash", lambda: isinstance(hash(d), int))
    probe("datum.pickle", lambda: roundtrip(d).loss_fn_inputs["weights"].data)
    probe("datum.deepcopy", lambda: copy.deepcopy(d).loss_fn_inputs["target_tokens"].data)
    probe("datum.model_dump", lambda: d.model_dump())
    probe("datum.model_copy", lambda: d.model_copy())
    probe(
        "datum.replace", lambda: dataclasses.replace(d, model_input=MI.empty()).model_input.length
    )
    probe(
        "datum.input_not_mutated",
        lambda: (lambda src: (D(model_input=mi, loss_fn_inputs=src), src["weights"])[1])(
            {"weights": [1.0]}
        ),
    )
    probe("datum.extra", lambda: D(model_input=mi, loss_fn_inputs={}, foo=1))
    if has(T, "PromptProvenanceSpan"):
        ps, ss = T.PromptProvenanceSpan, T.SampledProvenanceSpan
        probe("span.repr", lambda: repr(ps(sequence_id="s", length=2)))
        probe(
            "span.hash_eq",
            lambda: (
                hash(ps(sequence_id="s", length=2)) == hash(ps(sequence_id="s", length=2)),
                ps(sequence_id="s", length=2) == ps(sequence_id="s", length=2),
            ),
        )
        probe("span.neg", lambda: ps(sequence_id="s", length=-1))
        probe("span.emptyid", lambda: ss(sequence_id="", length=1))
        probe("span.negoff", lambda: ss(sequence_id="s", length=1, offset=-1))
        probe("span.positional", lambda: ss("s", 0, 1))
        dd = build(lambda: D(model_input=mi, loss_fn_inputs={"target_tokens": [1, 2, 3]}))
        good = build(
            lambda: dict(
                model_input=[ps(sequence_id="s", length=3)],
                loss_fn_inputs=[ss(sequence_id="s", length=3)],
            )
        )
        probe("datum.with_provenance", lambda: len(dd.with_provenance(**good).model_input_spans))
        probe(
            "datum.with_provenance_bad",
            lambda: dd.with_provenance(
                model_input=[ps(sequence_id="s", length=2)], loss_fn_inputs=good["loss_fn_inputs"]
            ),
        )
        probe(
            "datum.one_span_only",
            lambda: D(model_input=mi, loss_fn_inputs={}, model_input_spans=[]),
        )
        probe(
            "datum.bad_span_type",
            lambda: D(
                model_input=mi, loss_fn_inputs={}, model_input_spans=[1], loss_fn_input_spans=[1]
            ),
        )
    # --- params
    SP = tinker.SamplingParams
    probe("sp.default", lambda: repr(SP()))
    probe("sp.extra_ignored", lambda: repr(SP(foo=1)))
    for other in NAMES_OF_OTHER_LIBRARIES:
        probe(f"sp.ignored.{other}", lambda other=other: same_without(SP, other))
    for kind, fields in PYDANTIC_FIELDS.items():
        probe(
            f"model_fields.{kind}",
            lambda kind=kind, fields=fields: described(getattr(tinker.types, kind), fields.split()),
        )
    probe("sp.frozen", lambda: setattr(SP(), "seed", 1))
    probe("sp.hash", lambda: isinstance(hash(SP()), int))
    probe("sp.hash_list_stop", lambda: isinstance(hash(SP(stop=["a"])), int))
    probe("sp.stop_str", lambda: SP(stop="a").stop)
    probe("sp.stop_strs", lambda: SP(stop=["a", "b"]).stop)
    probe("sp.stop_ints", lambda: SP(stop=[1, 2]).stop)
    probe("sp.stop_mixed", lambda: SP(stop=[1, "a"]).stop)
    probe("sp.stop_npints", lambda: SP(stop=[np.int64(3)]).stop)
    probe("sp.stop_empty", lambda: SP(stop=[]).stop)
    probe("sp.temp_int_type", lambda: type(SP(temperature=0).temperature).__name__)
    probe(
        "sp.default_temp_type", lambda: (type(SP().temperature).__name__, type(SP().top_p).__name__)
    )
    probe("sp.model_copy", lambda: SP().model_copy(update={"max_tokens": 3}).max_tokens)
    probe("sp.model_dump", lambda: SP(max_tokens=5).model_dump(exclude_none=True))
    probe("sp.pickle", lambda: roundtrip(SP(max_tokens=5)) == SP(max_tokens=5))
    probe("sp.max_tokens_float", lambda: SP(max_tokens=5.5))
    probe("sp.max_tokens_negative", lambda: SP(max_tokens=-5).max_tokens)
    AP = tinker.AdamParams
    probe("adam.default", lambda: repr(AP()))
    probe("adam.extra", lambda: AP(foo=1))
    probe("adam.frozen", lambda: setattr(AP(), "beta1", 1))
    probe("adam.positional", lambda: AP(1e-4))
    probe("adam.hash", lambda: isinstance(hash(AP()), int))
    probe("adam.eq", lambda: AP() == AP())
    if has(T, "DimuonParams"):
        probe("dimuon.required", lambda: T.DimuonParams())
        probe("dimuon.repr", lambda: repr(T.DimuonParams(learning_rate=1)))
        probe("dimuon.neg", lambda: T.DimuonParams(learning_rate=-1))
        probe("dimuon.inf", lambda: T.DimuonParams(learning_rate=float("inf")))
        probe("dimuon.beta1", lambda: T.DimuonParams(learning_rate=1, beta1=1.0))
        probe("dimuon.cfg", lambda: repr(T.DimuonOptimizerConfig()))
        probe("adamcfg.repr", lambda: repr(T.AdamOptimizerConfig()))
    probe("lora.required", lambda: T.LoraConfig())
    probe("lora.repr", lambda: repr(T.LoraConfig(rank=8)))
    for n, mk in {
        "optim": lambda: T.OptimStepRequest(adam_params=AP(), model_id="m", seq_id=1),
        "optim2": lambda: T.OptimStepRequest(optim_params=AP(), model_id="m", seq_id=1),
        "optim3": lambda: T.OptimStepRequest(
            optim_params=T.DimuonParams(learning_rate=0.1), model_id="m", seq_id=1
        ),
    }.items():
        probe(f"{n}.dump", lambda mk=mk: mk().model_dump(mode="json", exclude_none=True))
    # --- responses
    SS = tinker.SampledSequence
    probe("seq.ctor_required", lambda: SS())
    probe("seq.ctor_wire", lambda: SS(tokens=[1], stop_reason="stop"))
    probe(
        "seq.ctor_np",
        lambda: (lambda s: (s.tokens, s.logprobs, s.topk_logprobs))(
            SS(
                stop_reason="stop",
                sequence_id="q",
                tokens_np=np.array([1, 2], np.int32),
                logprobs_np=np.array([0.5, 0.25], np.float32),
            )
        ),
    )
    probe(
        "seq.ctor_list",
        lambda: (lambda s: (s.tokens, s.logprobs, s.tokens_np))(
            SS(stop_reason="length", sequence_id="q", _tokens_list=[1], _logprobs_list=[0.1])
        ),
    )
    probe(
        "seq.empty_tokens",
        lambda: (
            SS(stop_reason="stop", sequence_id="q").tokens,
            SS(stop_reason="stop", sequence_id="q").logprobs,
        ),
    )
    probe(
        "seq.repr",
        lambda: repr(SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1], np.int32))),
    )
    probe(
        "seq.frozen", lambda: setattr(SS(stop_reason="stop", sequence_id="q"), "stop_reason", "x")
    )
    probe(
        "seq.tokens_cached",
        lambda: (lambda s: s.tokens is s.tokens)(
            SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1], np.int32))
        ),
    )
    probe(
        "seq.pickle",
        lambda: (
            roundtrip(
                SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1], np.int32))
            ).tokens
        ),
    )
    probe(
        "seq.eq_np",
        lambda: (
            SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1, 2], np.int32))
            == SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1, 2], np.int32))
        ),
    )
    probe(
        "seq.hash_np",
        lambda: isinstance(
            hash(SS(stop_reason="stop", sequence_id="q", tokens_np=np.array([1, 2], np.int32))), int
        ),
    )
    probe("seq.model_dump", lambda: SS(stop_reason="stop", sequence_id="q").model_dump())
    SR = tinker.SampleResponse
    probe(
        "resp.ctor",
        lambda: (lambda r: (r.prompt_logprobs, r.topk_prompt_logprobs, r.prompt_cache_hit_tokens))(
            SR(sequences=[])
        ),
    )
    probe(
        "resp.prompt_logprobs_nan",
        lambda: (
            SR(
                sequences=[], prompt_logprobs_np=np.array([np.nan, -1.5], np.float32)
            ).prompt_logprobs
        ),
    )
    probe("resp.repr", lambda: repr(SR(sequences=[])))
    probe(
        "resp.pickle",
        lambda: (
            roundtrip(
                SR(sequences=[], prompt_logprobs_np=np.array([np.nan, -1.5], np.float32))
            ).prompt_logprobs
        ),
    )
    FB = tinker.ForwardBackwardOutput
    probe("fb.ctor", lambda: repr(FB(loss_fn_output_type="X", loss_fn_outputs=[])))
    probe("fb.loss", lambda: FB(loss_fn_output_type="X", loss_fn_outputs=[]).loss)
    probe(
        "fb.metrics_mutable",
        lambda: (lambda f: (f.metrics.update(a=1), f.metrics)[1])(
            FB(loss_fn_output_type="X", loss_fn_outputs=[])
        ),
    )
    probe(
        "ckpt.path",
        lambda: repr(tinker.ParsedCheckpointTinkerPath.from_tinker_path("tinker://r/weights/1")),
    )
    for p in (
        "tinker://r/sampler_weights/1",
        "tinker://r/external_weights/1",
        "r/weights/1",
        "tinker://r/weights",
        "tinker://r/weights/a/b",
        "tinker://r/foo/1",
        "tinker:///weights/1",
    ):
        probe(
            f"ckpt.path {p}",
            lambda p=p: (lambda x: (x.training_run_id, x.checkpoint_type, x.checkpoint_id))(
                tinker.ParsedCheckpointTinkerPath.from_tinker_path(p)
            ),
        )
    probe(
        "saved.console_url",
        lambda: T.SaveWeightsResponse(path="tinker://r/weights/1").get_console_url(),
    )
    probe(
        "saved.sampler_console_url",
        lambda: T.SaveWeightsForSamplerResponse(
            path="tinker://r/sampler_weights/1"
        ).get_console_url(),
    )
    probe(
        "saved.playground_url",
        lambda: T.SaveWeightsForSamplerResponse(
            path="tinker://r/sampler_weights/1"
        ).get_playground_url(),
    )
    probe("basemodel.extra_ignored", lambda: repr(T.SaveWeightsResponse(path="p", nope=1)))
    probe("basemodel.frozen", lambda: setattr(T.SaveWeightsResponse(path="p"), "path", "q"))
    probe("getinfo", lambda: repr(T.GetInfoResponse(model_data={"model_name": "m"}, model_id="x")))
    # --- exceptions
    import httpx

    req = httpx.Request("GET", "http://x/")
    resp = httpx.Response(404, request=req)
    for n in (
        "APIError",
        "APIStatusError",
        "APIResponseValidationError",
        "APIConnectionError",
        "APITimeoutError",
        "BadRequestError",
        "AuthenticationError",
        "BillingError",
        "PermissionDeniedError",
        "NotFoundError",
        "ConflictError",
        "UnprocessableEntityError",
        "RateLimitError",
        "InternalServerError",
    ):
        c = getattr(tinker, n)
        if isinstance(c, Missing):
            out[f"exc.{n}"] = "missing"
            continue
        if n.endswith("Error") and n not in (
            "APIError",
            "APIResponseValidationError",
            "APIConnectionError",
            "APITimeoutError",
        ):
            mk = lambda c=c: c("msg", response=resp, body={"a": 1})  # noqa: E731
        elif n == "APIResponseValidationError":
            mk = lambda c=c: c(resp, {"a": 1})  # noqa: E731
        elif n == "APIConnectionError" or n == "APITimeoutError":
            mk = lambda c=c: c(req)  # noqa: E731
        else:
            mk = lambda c=c: c("msg", req, body=None)  # noqa: E731
        probe(
            f"exc.{n}",
            lambda mk=mk: (
                lambda e: (str(e), e.message, e.body, getattr(e, "status_code", None), repr(e))
            )(mk()),
        )
        probe(
            f"exc.{n}.pickle",
            lambda mk=mk: (lambda e: (type(e).__name__, str(e), e.body))(roundtrip(mk())),
        )
        probe(
            f"exc.{n}.deepcopy",
            lambda mk=mk: (lambda e: (type(e).__name__, str(e), e.body))(copy.deepcopy(mk())),
        )
    if has(tinker, "RequestFailedError") and has(T, "RequestErrorCategory"):
        cat = T.RequestErrorCategory
        probe("exc.category", lambda: (list(cat), [str(x) for x in cat], cat("user")))
        mkr = lambda: tinker.RequestFailedError("m", request_id="r", category=cat.User)  # noqa: E731
        probe(
            "exc.RequestFailedError",
            lambda: (lambda e: (str(e), e.message, e.request_id, e.category))(mkr()),
        )
        probe(
            "exc.RequestFailedError.pickle",
            lambda: (lambda e: (str(e), e.request_id, e.category))(roundtrip(mkr())),
        )
        probe(
            "exc.RequestFailedError.deepcopy",
            lambda: (lambda e: (str(e), e.request_id, e.category))(copy.deepcopy(mkr())),
        )
        probe(
            "exc.RequestFailedError.isapi",
            lambda: issubclass(tinker.RequestFailedError, tinker.APIError),
        )
    # --- futures
    from concurrent.futures import Future

    ACF = Soft(
        module("tinker.lib.public_interfaces.api_future"), "api_future"
    ).AwaitableConcurrentFuture

    f: Future = Future()
    f.set_result(5)
    probe("acf.result", lambda: ACF(f).result())
    probe("acf.await", lambda: asyncio.run(_await(ACF(f))))
    probe("acf.await_twice", lambda: asyncio.run(_await2(ACF(f))))
    probe("acf.future_identity", lambda: ACF(f).future() is f)
    g: Future = Future()
    probe("acf.result_timeout", lambda: ACF(g).result(timeout=0.01))
    probe("acf.result_async_timeout", lambda: asyncio.run(ACF(g).result_async(timeout=0.01)))
    probe("acf.cancelled_by_async_timeout", lambda: g.cancelled())
    probe("acf.coroutine", lambda: asyncio.run(ACF(f).coroutine()))
    probe("acf.has_done", lambda: hasattr(ACF(f), "done"))
    probe("acf.has_add_done_callback", lambda: hasattr(ACF(f), "add_done_callback"))
    # --- clients, offline
    env = dict(os.environ)
    for k in list(os.environ):
        if k.startswith("TINKER_"):
            del os.environ[k]
    os.environ["HOME"] = "/nonexistent-home"
    try:
        SC = tinker.ServiceClient
        probe("sc.ctor_lazy", lambda: type(SC()).__name__)
        probe("sc.ctor_bad_key", lambda: type(SC(api_key="zzz")).__name__)
        probe("sc.kwargs", lambda: type(SC(timeout=3)).__name__)
        probe("sc.create_sampling_none", lambda: SC().create_sampling_client())
        probe("sc.create_sampling_nokey", lambda: SC().create_sampling_client(base_model="x"))
        probe(
            "sc.create_lora_nothing",
            lambda: SC().create_lora_training_client(
                "m", train_mlp=False, train_attn=False, train_unembed=False
            ),
        )
        probe("sc.console_url", lambda: SC().get_console_url())
        probe("sc.close_unused", lambda: SC().close("success").result(1))
        probe("sc.ctx_manager", lambda: _ctx(SC()))
        probe("sc.use_after_close", lambda: _after_close(SC()))
        probe("rest.nokey", lambda: tinker.RestClient())
        probe("rest.badkey", lambda: tinker.RestClient(api_key="zzz"))
        if has(tinker, "auth"):
            probe("auth.has_none", lambda: tinker.auth.tinker_has_credentials())
            probe("auth.token_none", lambda: tinker.auth.get_tinker_token())
            probe("auth.raise_none", lambda: tinker.auth.raise_if_tinker_not_accessible())
            os.environ["TINKER_API_KEY"] = "tml-abc"
            probe("auth.has_env", lambda: tinker.auth.tinker_has_credentials())
            probe("auth.token_env", lambda: tinker.auth.get_tinker_token())
            os.environ["TINKER_API_KEY"] = "bad"
            probe("auth.has_bad", lambda: tinker.auth.tinker_has_credentials())
            probe("auth.token_bad", lambda: tinker.auth.get_tinker_token())
            del os.environ["TINKER_API_KEY"]
            os.environ["TINKER_CREDENTIAL_CMD"] = "echo x"
            probe("auth.has_cmd", lambda: tinker.auth.tinker_has_credentials())
            probe("auth.token_cmd", lambda: tinker.auth.get_tinker_token())
    finally:
        os.environ.clear()
        os.environ.update(env)
    RetryConfig = Soft(module("tinker.lib.retry_handler"), "retry_handler").RetryConfig
    if True:
        probe(
            "retry.default",
            lambda: {k: default_str(v) for k, v in dataclasses.asdict(RetryConfig()).items()},
        )
        probe("retry.bad", lambda: RetryConfig(max_connections=0))
        probe("retry.hash", lambda: hash(RetryConfig()) == hash(RetryConfig()))
        probe("retry.mutable", lambda: setattr(RetryConfig(), "progress_timeout", 1))
    return out


async def _await(f):
    return await f


async def _await2(f):
    return (await f, await f)


def _ctx(c):
    with c as x:
        return x is c


def _after_close(c):
    c.close("success").result(1)
    return c.create_sampling_client(base_model="x")


# ----------------------------------------------------------------------------- arguments


def forms(value: object) -> dict[str, object]:
    """Return the same value in other forms that programs hold it in, by a name for the form."""
    import numpy as np

    torch = None
    if importlib.util.find_spec("torch"):
        import torch
    given: dict[str, object] = {"plain": value}
    if isinstance(value, bool):
        given |= {"int": int(value), "numpy": np.bool_(value), "str": str(value).lower()}
    elif isinstance(value, (int, float)):
        given |= {
            kind: getattr(np, kind)(value)
            for kind in ("int64", "int32", "float32", "float64")
            if kind != "int32" or isinstance(value, int)
        }
        given |= {"array": np.array(value), "str": str(value)}
    elif isinstance(value, str):
        given |= {"numpy": np.str_(value)}
    elif hasattr(value, "model_dump") or dataclasses.is_dataclass(value):
        given |= {"dict": plain_form(value), "json": json.dumps(plain_form(value), default=str)}
    elif isinstance(value, dict):
        given |= {
            "mapping": _pytypes.MappingProxyType(value),
            "str": json.dumps(value, default=str),
        }
    elif isinstance(value, list):
        given |= {"tuple": tuple(value), "generator": (one for one in value)}
        if all(isinstance(one, (int, float)) for one in value):
            given |= {
                "numpy": np.array(value),
                "numbers": [np.array(one)[()] for one in value],
                "str": [str(one) for one in value],
            }
        elif not all(isinstance(one, str) for one in value):
            given |= {"dicts": [plain_form(one) for one in value]}
    if (
        torch is not None
        and isinstance(value, (bool, int, float, list))
        and not (isinstance(value, list) and given.get("numpy") is None)
    ):
        given["tensor"] = torch.tensor(value)
    return given


def plain_form(value: object) -> object:
    """Return a value of the package as plain data."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return (
        {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if dataclasses.is_dataclass(value)
        else value
    )


def stub_server() -> tuple[str, list[str]]:
    """Return the address of a server that accepts every request, with new models as only results,
    and the requested paths.
    """
    import http.server
    import threading

    seen: list[str] = []

    class Stub(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            path = self.path.split("?")[0].removeprefix("/api/v1/")
            seen.append(path)
            ids = dict.fromkeys(
                ("session_id", "model_id", "sampling_session_id", "request_id", "future_id"),
                "m:train:0",
            )
            status, answer = 200, {**ids, "request_id": path, "type": path}
            if path.startswith("client/"):
                answer = {}
            elif path == "retrieve_future" and b"create_model" not in body:
                status, answer = 400, {"detail": "there is no such result"}
            elif path == "retrieve_future":
                answer = {"type": "create_model", "model_id": "m:train:0"}
            elif path == "get_info":
                answer |= {"model_data": {"model_name": "b", "tokenizer_id": "b"}}
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}", seen


def argument_probes() -> dict[str, str]:
    """For each argument and form: "taken", or what refuses it. Values are made; calls of clients
    are followed to the server.
    """
    import logging
    import time

    import numpy as np

    import tinker
    from tinker import types

    logging.disable(logging.CRITICAL)
    text = types.ModelInput.from_ints([1, 2, 3])
    inputs = {
        "target_tokens": types.TensorData(data=[2, 3, 4], dtype="int64", shape=[3]),
        "weights": types.TensorData(data=[1.0] * 3, dtype="float32", shape=[3]),
    }
    datum = types.Datum(model_input=text, loss_fn_inputs=inputs)
    params = types.SamplingParams(max_tokens=3)
    scored = types.TensorData(data=[1, 2], dtype="int64", shape=[2, 1])
    made = {
        "EncodedTextChunk": (types.EncodedTextChunk, {"tokens": [1, 2]}),
        "ImageChunk": (types.ImageChunk, {"data": "aGk=", "format": "png", "expected_tokens": 3}),
        "ImageAssetPointerChunk": (types.ImageAssetPointerChunk, {"format": "png", "location": "http://h/i", "expected_tokens": 3}),
        "ModelInput": (types.ModelInput, {"chunks": text.chunks}),
        "ModelInput.from_ints": (types.ModelInput.from_ints, {"tokens": [1, 2]}),
        "ModelInput.append": (text.append, {"chunk": text.chunks[0]}),
        "ModelInput.append_int": (text.append_int, {"new_token": 4}),
        "TensorData": (types.TensorData, {"data": [1, 2], "dtype": "int64", "shape": [2]}),
        "Datum": (types.Datum, {"model_input": text, "loss_fn_inputs": inputs}),
        "Datum(list)": (lambda weights: types.Datum(model_input=text, loss_fn_inputs={"weights": weights}), {"weights": [1.0, 2.0, 3.0]}),
        "Datum(int list)": (lambda target_tokens: types.Datum(model_input=text, loss_fn_inputs={"target_tokens": target_tokens}), {"target_tokens": [1, 2, 3]}),
        "SamplingParams": (types.SamplingParams, {"max_tokens": 3, "seed": 1, "stop": ["x"], "temperature": 0.5, "top_k": 5, "top_p": 0.5}),
        "SamplingParams(ids)": (types.SamplingParams, {"stop": [1, 2]}),
        "AdamParams": (types.AdamParams, {"learning_rate": 0.5, "beta1": 0.5, "beta2": 0.5, "eps": 1.0, "weight_decay": 0.5, "grad_clip_norm": 1.0}),
        "LoraConfig": (types.LoraConfig, {"rank": 8, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}),
        "SampledProvenanceSpan": (types.SampledProvenanceSpan, {"sequence_id": "s", "offset": 0, "length": 3}),
    }  # fmt: skip
    path = "tinker://m/weights/n"
    trained = {
        "forward": ("forward_backward", {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": {"a": 0.5}}),
        "forward_backward": ("forward_backward", {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": {"a": np.float64(0.5)}}),
        "optim_step": ("optim_step", {"optim_params": types.AdamParams(learning_rate=0.5)}),
        "save_state": ("save_weights", {"name": "n", "ttl_seconds": 3600, "overwrite": True, "user_metadata": {"a": "b"}}),
        "save_weights_for_sampler": ("save_weights_for_sampler", {"name": "n", "ttl_seconds": 3600, "user_metadata": {"a": "b"}}),
        "save_weights_external": ("save_weights_external", {"name": "n", "ttl_seconds": 3600, "age_encryption_recipients": ["age1"]}),
        "load_state": ("load_weights", {"path": path, "weights_access_token": "t"}),
    }  # fmt: skip
    sampled = {
        "sample": ("asample", {"prompt": text, "num_samples": 1, "sampling_params": params, "include_prompt_logprobs": True,
                               "topk_prompt_logprobs": 1, "topk_sample_logprobs": 1, "target_prompt_logprobs": scored,
                               "prompt_alt_tokens_k": 1, "prompt_logprobs_last_n": 1}),
        "compute_logprobs": ("asample", {"prompt": text, "prompt_logprobs_last_n": 1}),
    }  # fmt: skip
    asked = {
        "list_training_runs": ("training_runs", {"limit": 2, "offset": 1}),
        "list_user_checkpoints": ("checkpoints", {"limit": 2, "offset": 1}),
        "list_sessions": ("sessions", {"limit": 2, "offset": 1}),
        "get_training_run": ("training_runs/r", {"training_run_id": "r"}),
        "set_checkpoint_ttl_from_tinker_path": ("training_runs/m/checkpoints/weights/n/ttl", {"tinker_path": path, "ttl_seconds": 3600}),
    }  # fmt: skip
    address, seen = stub_server()
    service = tinker.ServiceClient(base_url=address, api_key="tml-key")

    def sent(call, wanted: str) -> str:
        seen.clear()
        try:
            future = call()
            end = time.monotonic() + 10
            while wanted not in seen and time.monotonic() < end:
                if getattr(future, "done", lambda: False)():
                    future.result()
                time.sleep(0.002)
        except BaseException as error:
            return "taken" if wanted in seen else f"refused: {type(error).__name__}"
        return "taken" if wanted in seen else "refused: nothing was sent"

    def built(call) -> str:
        try:
            call()
        except BaseException as error:
            return f"refused: {type(error).__name__}"
        return "taken"

    out: dict[str, str] = {}

    def hold(name: str, values: dict[str, object], judge) -> None:
        for argument, value in values.items():
            for form, other in forms(value).items():
                out[f"{name}({argument}={form})"] = judge({**values, argument: other})

    for name, (kind, values) in made.items():
        hold(
            name,
            values,
            lambda given, kind=kind, name=name: built(
                lambda: kind(*given.values()) if "." in name else kind(**given)
            ),
        )
    creation = {
        "base_model": "b",
        "rank": 8,
        "seed": 1,
        "train_mlp": True,
        "train_attn": True,
        "train_unembed": True,
        "user_metadata": {"a": "b"},
    }
    hold(
        "create_lora_training_client",
        creation,
        lambda given: sent(lambda: service.create_lora_training_client(**given), "create_model"),
    )
    for name, (operation, values) in trained.items():
        hold(name, values, lambda given, name=name, operation=operation: sent(
            lambda: getattr(service.create_lora_training_client("b"), name)(**given), operation))  # fmt: skip
    for name, (operation, values) in sampled.items():
        hold(name, values, lambda given, name=name, operation=operation: sent(
            lambda: getattr(service.create_sampling_client(base_model="b"), name)(**given), operation))  # fmt: skip
    rest = service.create_rest_client()
    for name, (operation, values) in asked.items():
        hold(
            name,
            values,
            lambda given, name=name, operation=operation: sent(
                lambda: getattr(rest, name)(**given), operation
            ),
        )
    return out


# ----------------------------------------------------------------------------- main


def main() -> None:
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    flags = {a for a in sys.argv[1:] if a.startswith("--")}
    if not args:
        sys.exit("usage: introspect_surface.py OUT.json [--no-probes] [--no-cli]")
    try:
        mod = importlib.import_module(PKG)
    except Exception as e:  # pragma: no cover
        sys.exit(f"cannot import {PKG}: {type(e).__name__}: {e}")
    res: dict = {
        "meta": {
            "file": getattr(mod, "__file__", None),
            "version": getattr(mod, "__version__", None),
            "python": sys.version.split()[0],
            "torch": importlib.util.find_spec("torch") is not None,
        },
        "groups": {},
    }
    for g in GROUPS:
        res["groups"][g] = group(g)
    res["private"] = private_group()
    res["modules"] = module_list()
    res["paths"] = paths_group()
    res["package"] = package_info()
    if "--no-cli" not in flags:
        try:
            res["cli"] = cli_info()
        except Exception as e:
            res["cli"] = {}
            res["cli_error"] = f"{type(e).__name__}: {e}"
        res["cli_probes"] = cli_probes()
    if "--no-probes" not in flags:
        try:
            res["probes"] = probes()
        except BaseException as e:
            res["probes"] = {}
            res["probes_error"] = f"{type(e).__name__}: {e}"
    res["arguments"] = argument_probes()
    with open(args[0], "w") as f:
        json.dump(res, f, indent=1, sort_keys=False)
    n = sum(len(g["exports"]) for g in res["groups"].values())
    print(
        f"{args[0]}: tinker {res['meta']['version']} from {res['meta']['file']}: "
        f"{n} exports, {len(res['modules'])} modules, {len(res.get('cli', {}))} CLI commands, "
        f"{len(res.get('probes', {}))} probes, {len(res['arguments'])} arguments, "
        f"torch={res['meta']['torch']}"
        + (f"; PROBES FAILED {res['probes_error']}" if "probes_error" in res else "")
    )


if __name__ == "__main__":
    import importlib.util

    main()
    sys.stdout.flush()
    os._exit(0)
