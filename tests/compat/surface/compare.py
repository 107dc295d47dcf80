"""Compare two surfaces that introspect.py wrote: what of the reference is in the candidate, with the
same kind, parameters and defaults, and what is missing or different.

A candidate may have more: names, optional parameters, values that it takes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import attrs

#: Bases of other packages that code asks for with `isinstance` or `except`.
KNOWN_BASES = frozenset(
    [
        "Exception",
        "Warning",
        "FutureWarning",
        "BaseModel",
        "ABC",
        "Enum",
        "StrEnum",
        "str",
        "Future",
    ]
)
POSITIONAL = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")
OPTION_FACTS = ("name", "type", "required", "nargs", "multiple", "is_flag", "default", "choices")
#: Each package has its own.
VERSIONS = {"__version__", "tinker._version.__version__"}
Described = dict[str, Any]


@attrs.frozen
class Item:
    """A thing of the reference, and what is wrong with it in ours: None if it is missing."""

    group: str
    name: str
    problems: list[str] | None

    @property
    def line(self) -> str:
        """The difference, as reasons are searched in it."""
        if self.problems is None:
            return f"{self.group}: missing: {self.name}"
        return f"{self.group}: {self.name}: {'; '.join(self.problems)}"


#: An item without its group.
Part = tuple[str, list[str] | None]


def compare(reference: Described, candidate: Described) -> Iterator[Item]:
    """Yield every item of the reference."""
    surfaces = Surfaces(reference, candidate)
    for group, names in reference["groups"].items():
        for part in surfaces.exports(names, candidate["groups"].get(group, {})):
            yield Item(group, *part)
    for module, names in reference["private"].items():
        for name, problems in surfaces.exports(names, candidate["private"].get(module, {})):
            yield Item("private", f"{module}.{name}", problems)
    for group, compared in {
        "cli": compare_commands,
        "cli_exit_codes": compare_exits,
        "paths": compare_paths,
        "package": compare_packages,
        "probes": compare_probes,
        "arguments": compare_arguments,
    }.items():
        yield from (Item(group, *part) for part in compared(reference[group], candidate[group]))


def unlike(one: object, other: object, what: str = "") -> list[str]:
    return [] if one == other else [f"{what}{one} != {other}"]


def is_same_default(one: str | None, other: str | None) -> bool:
    if one is None or other is None:
        return one == other
    try:
        return bool(ast.literal_eval(one) == ast.literal_eval(other))
    except (SyntaxError, ValueError):
        return one.replace(" ", "") == other.replace(" ", "")


# --------------------------------------------------------------------------- functions and classes


def compare_parameters(theirs: list[Described] | None, ours: list[Described] | None) -> list[str]:
    if theirs is None or ours is None:
        return ["no signature in candidate"] if theirs is not None else []
    by_name = {one["name"]: one for one in ours}
    known = {one["name"] for one in theirs}
    found: list[str] = []
    for one in theirs:
        name = f"param {one['name']}"
        other = by_name.get(one["name"])
        if other is None:
            takes_any = any(one["kind"] == "VAR_KEYWORD" for one in ours)
            found.append(f"{name} missing" + " (has **kwargs)" * takes_any)
            continue
        found += unlike(one["kind"], other["kind"], f"{name} kind ")
        if not is_same_default(one.get("default"), other.get("default")):
            defaults = [each.get("default", "<required>") for each in (one, other)]
            found.append(f"{name} default {defaults[0]} != {defaults[1]}")
    their_order = [one["name"] for one in theirs if one["kind"] in POSITIONAL]
    our_order = [one["name"] for one in ours if one["kind"] in POSITIONAL]
    shared = [name for name in our_order if name in known]
    if [name for name in their_order if name in by_name] != shared and not found:
        found.append(f"positional order {their_order} != {shared}")
    for one in ours:
        is_optional = one["kind"] in ("VAR_POSITIONAL", "VAR_KEYWORD") or "default" in one
        if one["name"] not in known and not is_optional:
            found.append(f"extra required param {one['name']}")
    # a further positional one before one of the reference breaks positional calls
    if not found and our_order[: len(their_order)] != their_order:
        found.append(f"positional order {their_order} != {our_order}")
    return found


def compare_callables(theirs: Described, ours: Described) -> list[str]:
    marker = "missing" if theirs["deprecated"] else "unexpected"
    same_marker = theirs["deprecated"] == ours["deprecated"]
    return [
        *unlike(theirs["kind"], ours["kind"], "kind "),
        *unlike(theirs["async"], ours["async"], "async "),
        *compare_parameters(theirs["parameters"], ours["parameters"]),
        *([] if same_marker else [f"deprecated marker {marker}"]),
    ]


def compare_classes(
    name: str, theirs: Described, ours: Described, public: set[str]
) -> Iterator[Part]:
    """Yield what there is of a class: facts, fields, members, methods, ..."""
    flavour = theirs["flavour"]
    yield f"{name} [flavour]", unlike(flavour, ours["flavour"])
    bases = [one for one in theirs["mro"][1:] if one in public | KNOWN_BASES]
    lost = [one for one in bases if one not in ours["mro"]]
    yield f"{name} [mro]", [f"not a subclass of {', '.join(lost)}"] if lost else []
    yield f"{name} [hashable]", unlike(theirs["hashable"], ours["hashable"])
    if theirs["abstract_methods"] or ours["abstract_methods"]:
        abstract = unlike(theirs["abstract_methods"], ours["abstract_methods"])
        yield f"{name} [abstract]", abstract
    if theirs.get("constructor") is not None:
        parameters = compare_parameters(theirs["constructor"], ours.get("constructor"))
        yield f"{name}()", parameters
    our_params = ours.get("dataclass_params", {})
    our_config = {"frozen": str(our_params.get("frozen")), **ours.get("config", {})}
    for key, value in theirs.get("config", {}).items():
        yield f"{name} [config.{key}]", unlike(value, our_config.get(key))
    for key, value in theirs.get("dataclass_params", {}).items():
        yield f"{name} [dataclass.{key}]", unlike(value, our_params.get(key))
    yield from compare_fields(name, theirs, ours)
    for key, value in theirs.get("members", {}).items():
        other = ours.get("members", {}).get(key)
        yield f"{name}.{key} [enum]", None if other is None else unlike(value, other)
    for key, method in theirs["methods"].items():
        other = ours["methods"].get(key)
        yield f"{name}.{key}()", None if other is None else compare_callables(method, other)
    for key in theirs["properties"]:
        if key not in ours["properties"] and key in ours["fields"]:
            yield f"{name}.{key} [property]", ["is a field, not a property"]
        else:
            yield f"{name}.{key} [property]", [] if key in ours["properties"] else None
    for key, value in theirs["attributes"].items():
        other = ours["attributes"].get(key)
        same = is_same_default(value, other)
        yield (
            f"{name}.{key} [attr]",
            None if other is None else [] if same else [f"{value} != {other}"],
        )
    # pydantic and dataclasses write these, and the flags above say so
    generated = ("__eq__", "__hash__") if flavour in ("pydantic", "dataclass") else ()
    for key in (key for key in theirs["dunders"] if key not in generated):
        yield f"{name}.{key}", [] if key in ours["dunders"] else None
    if theirs["deprecated"] != ours["deprecated"]:
        yield f"{name} [deprecated]", ["differs"]


def compare_fields(name: str, theirs: Described, ours: Described) -> Iterator[Part]:
    facts = ["alias", "validation_alias", "kw_only", "init", "compare", "literal_values"]
    if theirs["flavour"] != ours["flavour"]:
        facts = ["alias", "validation_alias", "literal_values"]
    for key, one in theirs["fields"].items():
        label, other = f"{name}.{key} [field]", ours["fields"].get(key)
        if key.startswith("_"):
            continue
        if other is None:
            is_property = key in ours["properties"]
            yield label, ["is a property, not a field"] if is_property else None
            continue
        found = unlike(one["required"], other["required"], "required ")
        is_made = "default" not in one and "default_factory" in one and "default" in other
        if not is_made and not is_same_default(one.get("default"), other.get("default")):
            defaults = [each.get("default", "<none>") for each in (one, other)]
            found.append(f"default {defaults[0]} != {defaults[1]}")
        for fact in (fact for fact in facts if fact in one):
            found += unlike(one[fact], other.get(fact), f"{fact} ")
        if "metadata" in one:
            found += unlike(one["metadata"], other.get("metadata"), "constraints ")
        yield label, found
    for key in sorted(ours["fields"].keys() - theirs["fields"].keys()):
        if ours["fields"][key]["required"] and not key.startswith("_"):
            yield f"{name}.{key} [field]", ["extra required field"]


class Surfaces:
    """The exported names of both, which may refer to one another."""

    def __init__(self, reference: Described, candidate: Described) -> None:
        self._reference, self._candidate = reference, candidate
        self._public = {name for names in reference["groups"].values() for name in names}

    def exports(self, theirs: Described, ours: Described) -> Iterator[Part]:
        """Yield what there is of the names of a module."""
        for name, one in theirs.items():
            other = ours.get(name)
            if one["kind"] == "module":
                is_there = other is not None and other["kind"] == "module"
                yield f"{name} [module attr]", [] if is_there else None
            elif other is None:
                yield name, None
            else:
                yield from self._export(name, one, other)

    def _export(self, name: str, one: Described, other: Described) -> Iterator[Part]:
        theirs, ours = resolve(one, self._reference), resolve(other, self._candidate)
        is_class = one["kind"] == "class" and "external" not in one and "ref" not in one
        if is_class and (ours["kind"] != "class" or "external" in ours):
            yield name, [f"not a class of this package: {ours['kind']}"]
            return
        found = unlike(theirs["kind"], ours["kind"], "kind ")
        if one.get("in_all") and not other.get("in_all"):
            found.append("not in __all__")
        if "external" in theirs:
            found += unlike(theirs["external"], ours.get("external"))
        for key in ("literal_values", "members"):
            if theirs.get(key) is not None and sorted(theirs[key]) != sorted(ours.get(key) or []):
                found.append(f"{key} {theirs[key]} != {ours.get(key)}")
        if theirs["kind"] == "value" and name not in VERSIONS:
            found += unlike(theirs["value"], ours.get("value"), "value ")
        if theirs["kind"] == ours["kind"] == "function":
            found += compare_callables(theirs, ours)
        yield name, found
        if is_class:
            yield from compare_classes(name, theirs, ours, self._public)


def resolve(described: Described, surface: Described) -> Described:
    """Return what an entry refers to: `group:name` or `private:module.name`."""
    while "ref" in described:
        group, _, name = described["ref"].partition(":")
        module, _, last = name.rpartition(".")
        described = (
            surface["private"][module][last]
            if group == "private"
            else surface["groups"][group][name]
        )
    return described


# --------------------------------------------------------------------------------------- the others


def compare_commands(theirs: Described, ours: Described) -> Iterator[Part]:
    for path, command in theirs.items():
        if path not in ours:
            yield path, None
            continue
        yield path, unlike(command["kind"], ours[path]["kind"])
        rest = list(ours[path]["params"])
        for one in command["params"]:
            label = f"{path} {'/'.join(one['opts'])}"
            alike = [
                other
                for other in rest
                if other["param_type"] == one["param_type"]
                and set(other["opts"]) & set(one["opts"])
            ]
            other = next((other for other in alike if other["opts"] == one["opts"]), None)
            if other is not None:
                rest.remove(other)
                yield (
                    label,
                    [
                        problem
                        for fact in OPTION_FACTS
                        for problem in unlike(fact_of(one, fact), fact_of(other, fact), f"{fact} ")
                    ],
                )
            else:
                yield label, unlike(one["opts"], alike[0]["opts"], "opts ") if alike else None


def fact_of(parameter: Described, fact: str) -> object:
    """Return a fact; versions of click disagree on how "no default" of a flag is spelled."""
    value = parameter.get(fact)
    return None if fact == "default" and value in ("False", "()") else value


def compare_exits(theirs: Described, ours: Described) -> Iterator[Part]:
    for name, one in theirs.items():
        other = ours[name]
        has_crashed = other["traceback"] and not one["traceback"]
        status = unlike(one["status"], other["status"], "rc ")
        yield name, ["crashed with a traceback"] if has_crashed else status


def compare_paths(theirs: Described, ours: Described) -> Iterator[Part]:
    for module, names in theirs.items():
        if module not in ours:
            yield module, None
        else:
            yield from ((f"{module}.{one}", [] if one in ours[module] else None) for one in names)


def compare_packages(theirs: Described, ours: Described) -> Iterator[Part]:
    for key in ("extras", "entry_points"):
        yield from ((f"{key}:{one}", [] if one in ours[key] else None) for one in theirs[key])
    yield "py.typed", [] if theirs["typed"] == ours["typed"] else ["differs"]


def compare_probes(theirs: Described, ours: Described) -> Iterator[Part]:
    for name, one in theirs.items():
        same = without_modules(one) == without_modules(ours[name])
        yield name, [] if same else [f"{one[:220]}  !=  {ours[name][:220]}"]


def without_modules(text: str) -> str:
    return re.sub(r"\w+(\.\w+)+\.(\w+)'>", r"\2'>", text)


def compare_arguments(theirs: Described, ours: Described) -> Iterator[Part]:
    for name, one in theirs.items():
        is_taken = one != "taken" or ours[name] == "taken"
        yield name, [] if is_taken else [f"{one}  !=  {ours[name]}"]
