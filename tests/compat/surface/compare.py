#!/usr/bin/env python3
"""Compare two surfaces written by introspect_surface.py.

    compare_surface.py REFERENCE.json CANDIDATE.json [options]

For every group prints  matched/total  and a percentage (of the reference's items found
in the candidate with the same kind, parameter names, parameter kinds and defaults),
then the missing and different items.

Options
  --only GROUP      only this group (repeatable; e.g. tinker, tinker.types, cli, probes)
  --max N           print at most N missing/different lines per group (default 60, 0 = all)
  --annotations     also list loose annotation differences (never counted as failures)
  --extras          also list what only the candidate has
  --strict          an extra optional parameter in the candidate counts as a difference
  --private         count private dataclass fields (leading underscore) too
  --json FILE       write the full result as JSON
  --fail-under PCT  exit 1 when the total percentage is below PCT
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import re
import sys
from collections import defaultdict

SKIP_VALUES = {"__version__", "tinker._version.__version__"}


# ------------------------------------------------------------------- loose annotations

_RENAME = {
    "List": "list",
    "Dict": "dict",
    "Tuple": "tuple",
    "Set": "set",
    "Type": "type",
    "FrozenSet": "frozenset",
    "NoneType": "None",
    "Text": "str",
}


def canon(s: str | None) -> str:
    """Return a canonical spelling of an annotation: no module prefixes, no quotes, X | None for
    Optional, sorted unions, Annotated stripped."""
    if not s:
        return "Any"
    try:
        t = ast.parse(s.strip(), mode="eval").body
    except SyntaxError:
        return re.sub(r"\s+", "", re.sub(r"\b\w+\.", "", s))
    return _canon(t)


def _canon(n: ast.AST) -> str:
    if isinstance(n, ast.Constant):
        if isinstance(n.value, str):
            try:
                return _canon(ast.parse(n.value, mode="eval").body)
            except SyntaxError:
                return n.value
        return "..." if n.value is Ellipsis else repr(n.value)
    if isinstance(n, ast.Name):
        return _RENAME.get(n.id, n.id)
    if isinstance(n, ast.Attribute):
        return _RENAME.get(n.attr, n.attr)
    if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr):
        return _union([_canon(n.left), _canon(n.right)])
    if isinstance(n, ast.List):
        return "[" + ",".join(_canon(e) for e in n.elts) + "]"
    if isinstance(n, ast.Tuple):
        return ",".join(_canon(e) for e in n.elts)
    if isinstance(n, ast.Subscript):
        base = _canon(n.value)
        elts = n.slice.elts if isinstance(n.slice, ast.Tuple) else [n.slice]
        if base == "Literal":
            vals = [repr(e.value) if isinstance(e, ast.Constant) else ast.unparse(e) for e in elts]
            return "Literal[" + ",".join(sorted(vals)) + "]"
        args = [_canon(e) for e in elts]
        if base == "Optional":
            return _union([args[0], "None"])
        if base == "Union":
            return _union(args)
        if base == "Annotated":
            return args[0]
        return base + "[" + ",".join(args) + "]"
    try:
        return ast.unparse(n)
    except Exception:
        return "?"


def _split_union(s: str) -> list[str]:
    out, depth, cur = [], 0, ""
    for ch in s:
        if ch in "[(":
            depth += 1
        elif ch in "])":
            depth -= 1
        if ch == "|" and depth == 0:
            out.append(cur)
            cur = ""
        else:
            cur += ch
    return [*out, cur]


def _union(parts: list[str]) -> str:
    flat: set[str] = set()
    for p in parts:
        flat |= set(_split_union(p))
    return "|".join(sorted(flat))


def same_default(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    if a is None or b is None:
        return False
    try:
        return ast.literal_eval(a) == ast.literal_eval(b)
    except Exception:
        return a.replace(" ", "") == b.replace(" ", "")


# ------------------------------------------------------------------- result collection


class Result:
    def __init__(self) -> None:
        self.total: dict[str, int] = defaultdict(int)
        self.ok: dict[str, int] = defaultdict(int)
        self.missing: dict[str, list[str]] = defaultdict(list)
        self.different: dict[str, list[str]] = defaultdict(list)
        self.extra: dict[str, list[str]] = defaultdict(list)
        self.annot_total: dict[str, int] = defaultdict(int)
        self.annot_ok: dict[str, int] = defaultdict(int)
        self.annot: dict[str, list[str]] = defaultdict(list)

    def item(self, g: str, name: str, problems: list[str] | None) -> None:
        """problems None = missing, [] = equal."""
        self.total[g] += 1
        if problems is None:
            self.missing[g].append(name)
        elif problems:
            self.different[g].append(f"{name}: " + "; ".join(problems))
        else:
            self.ok[g] += 1

    def ann(self, g: str, name: str, a: str | None, b: str | None) -> None:
        self.annot_total[g] += 1
        if canon(a) == canon(b):
            self.annot_ok[g] += 1
        else:
            self.annot[g].append(f"{name}: {a}  !=  {b}")


R = Result()
OPT: argparse.Namespace


# ------------------------------------------------------------------- comparers


def cmp_sig(g: str, name: str, a: dict | None, b: dict | None) -> list[str]:
    if a is None or b is None:
        return [] if a is b or a is None else ["no signature in candidate"]
    out = []
    pa, pb = a["params"], b["params"]
    bmap = {p["name"]: p for p in pb}
    amap = {p["name"]: p for p in pa}
    b_kwargs = any(p["kind"] == "VAR_KEYWORD" for p in pb)
    for p in pa:
        q = bmap.get(p["name"])
        if q is None:
            out.append(f"param {p['name']} missing" + (" (has **kwargs)" if b_kwargs else ""))
            continue
        if p["kind"] != q["kind"]:
            out.append(f"param {p['name']} kind {p['kind']} != {q['kind']}")
        if not same_default(p.get("default"), q.get("default")):
            out.append(
                f"param {p['name']} default {p.get('default', '<required>')} != "
                f"{q.get('default', '<required>')}"
            )
        R.ann(g, f"{name}({p['name']})", p.get("annotation"), q.get("annotation"))
    posa = [p["name"] for p in pa if p["kind"] in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    posb = [
        p["name"]
        for p in pb
        if p["kind"] in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD") and p["name"] in amap
    ]
    if [n for n in posa if n in bmap] != posb and not out:
        out.append(f"positional order {posa} != {posb}")
    for p in pb:
        if p["name"] in amap:
            continue
        if p["kind"] in ("VAR_POSITIONAL", "VAR_KEYWORD") or "default" in p:
            R.extra[g].append(f"{name}: param {p['name']}")
            if OPT.strict:
                out.append(f"extra param {p['name']}")
        else:
            out.append(f"extra required param {p['name']}")
    # an extra positional placed before a reference positional breaks positional calls
    allpos = [p["name"] for p in pb if p["kind"] in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")]
    if not out and allpos[: len(posa)] != posa:
        out.append(f"positional order {posa} != {allpos}")
    R.ann(g, f"{name} -> return", a.get("returns"), b.get("returns"))
    return out


def cmp_callable(g: str, name: str, a: dict, b: dict) -> list[str]:
    out = []
    ka, kb = a.get("kind"), b.get("kind")
    if ka != kb:
        out.append(f"kind {ka} != {kb}")
    if bool(a.get("async")) != bool(b.get("async")):
        out.append(f"async {bool(a.get('async'))} != {bool(b.get('async'))}")
    out += cmp_sig(g, name, a.get("sig"), b.get("sig"))
    if ("deprecated" in a) != ("deprecated" in b):
        out.append("deprecated marker " + ("missing" if "deprecated" in a else "unexpected"))
    return out


def cmp_class(g: str, name: str, a: dict, b: dict, public: set[str]) -> None:
    if b.get("kind") != "class" or "external" in b:
        return
    fa, fb = a.get("flavour"), b.get("flavour")
    fam = lambda f: {"exception": "exc", "warning": "exc"}.get(f, f)  # noqa: E731
    plainish = {"plain", "protocol", "abc"}
    same = fam(fa) == fam(fb) or (fa in plainish and fb in plainish)
    R.item(g, f"{name} [flavour]", [] if same else [f"{fa} != {fb}"])
    want = [
        m
        for m in a["mro"][1:]
        if m in public
        or m
        in (
            "Exception",
            "Warning",
            "FutureWarning",
            "BaseModel",
            "ABC",
            "Enum",
            "StrEnum",
            "str",
            "Future",
        )
    ]
    lost = [m for m in want if m not in b["mro"]]
    R.item(g, f"{name} [mro]", [f"not a subclass of {', '.join(lost)}"] if lost else [])
    R.item(
        g,
        f"{name} [hashable]",
        [] if a["hashable"] == b["hashable"] else [f"{a['hashable']} != {b['hashable']}"],
    )
    if sorted(a.get("abstract_methods", [])) or sorted(b.get("abstract_methods", [])):
        am, bm = a.get("abstract_methods", []), b.get("abstract_methods", [])
        R.item(g, f"{name} [abstract]", [] if am == bm else [f"{am} != {bm}"])
    if fa not in ("pydantic", "enum", "typeddict") and a.get("ctor") is not None:
        R.item(g, f"{name}()", cmp_sig(g, f"{name}()", a["ctor"], b.get("ctor")))
    ca, cb = a.get("config"), b.get("config")
    if ca is not None:
        frozen_b = (cb or {}).get("frozen") or str(
            (b.get("dataclass_params") or {}).get("frozen", None)
        )
        for k, v in ca.items():
            w = frozen_b if k == "frozen" else (cb or {}).get(k)
            R.item(g, f"{name} [config.{k}]", [] if v == w else [f"{v} != {w}"])
    pa, pb = a.get("dataclass_params"), b.get("dataclass_params")
    if pa is not None:
        for k in ("frozen", "eq", "order"):
            w = (pb or {}).get(k)
            if pb is None and k == "frozen":
                w = (cb or {}).get("frozen") == "True"
            R.item(g, f"{name} [dataclass.{k}]", [] if pa[k] == w else [f"{pa[k]} != {w}"])
    for n, f in (a.get("fields") or {}).items():
        if f.get("private") and not OPT.private:
            continue
        q = (b.get("fields") or {}).get(n)
        label = f"{name}.{n} [field]"
        if q is None:
            # a property is an acceptable home for a read-only field
            R.item(
                g,
                label,
                None if n not in b.get("properties", {}) else ["is a property, not a field"],
            )
            continue
        out = []
        if f.get("required") != q.get("required"):
            out.append(f"required {f.get('required')} != {q.get('required')}")
        if not same_default(f.get("default"), q.get("default")) and not (
            "default" not in f and "default_factory" in f and "default" in q
        ):
            out.append(f"default {f.get('default', '<none>')} != {q.get('default', '<none>')}")
        for k in ("alias", "validation_alias", "kw_only", "init", "compare", "literal_values"):
            if (
                k in f
                and f.get(k) != q.get(k)
                and not (fa != fb and k in ("kw_only", "init", "compare"))
            ):
                out.append(f"{k} {f.get(k)} != {q.get(k)}")
        if f.get("metadata") and f.get("metadata") != q.get("metadata"):
            out.append(f"constraints {f.get('metadata')} != {q.get('metadata')}")
        R.ann(g, label, f.get("annotation"), q.get("annotation"))
        R.item(g, label, out)
    for n in sorted(set(b.get("fields") or {}) - set(a.get("fields") or {})):
        if not n.startswith("_"):
            R.extra[g].append(f"{name}.{n} [field]")
            if (b["fields"][n] or {}).get("required"):
                R.item(g, f"{name}.{n} [field]", ["extra required field"])
    for n, v in (a.get("members") or {}).items():
        w = (b.get("members") or {}).get(n)
        R.item(g, f"{name}.{n} [enum]", None if w is None else ([] if v == w else [f"{v} != {w}"]))
    for n, m in a.get("methods", {}).items():
        q = b.get("methods", {}).get(n)
        R.item(g, f"{name}.{n}()", None if q is None else cmp_callable(g, f"{name}.{n}", m, q))
    for n in sorted(set(b.get("methods", {})) - set(a.get("methods", {}))):
        R.extra[g].append(f"{name}.{n}()")
    for n, m in a.get("properties", {}).items():
        q = b.get("properties", {}).get(n)
        if q is None and n in (b.get("fields") or {}):
            R.item(g, f"{name}.{n} [property]", ["is a field, not a property"])
            continue
        R.item(g, f"{name}.{n} [property]", None if q is None else [])
        if q:
            R.ann(g, f"{name}.{n}", m.get("returns"), q.get("returns"))
    for n, v in a.get("attributes", {}).items():
        if n not in b.get("attributes", {}):
            R.item(g, f"{name}.{n} [attr]", None)
        else:
            R.item(
                g,
                f"{name}.{n} [attr]",
                [] if same_default(v, b["attributes"][n]) else [f"{v} != {b['attributes'][n]}"],
            )
    for n in a.get("dunders", []):
        if n in ("__post_init__", "__repr__", "__del__") or (
            fa in ("pydantic",) and n in ("__eq__", "__hash__")
        ):
            continue
        if fa == "dataclass" and n in ("__eq__", "__hash__"):
            continue  # generated; covered by dataclass_params
        R.item(g, f"{name}.{n}", [] if n in b.get("dunders", []) else None)
    if ("deprecated" in a) != ("deprecated" in b):
        R.item(g, f"{name} [deprecated]", ["differs"])


def resolver(doc: dict):
    def resolve(e: dict | None) -> dict | None:
        seen = 0
        while e is not None and "ref" in e and seen < 5:
            where, _, n = e["ref"].partition(":")
            if where == "private":
                mod, _, leaf = n.rpartition(".")
                e2 = doc.get("private", {}).get(mod, {}).get("exports", {}).get(leaf)
            else:
                e2 = doc["groups"].get(where, {}).get("exports", {}).get(n)
            if e2 is None:
                return e
            e, seen = {**e2, "in_all": e.get("in_all")}, seen + 1
        return e

    return resolve


def member_count(a: dict, public: set[str]) -> int:
    """How many items a class contributes, so that a missing class counts in full."""
    global R
    keep, R = R, Result()
    try:
        cmp_class("x", "x", a, a, public)
        return R.total["x"]
    finally:
        R = keep


def cmp_export(g: str, n: str, ea: dict, eb: dict | None, ra, rb, public: set[str]) -> None:
    detailed = ea["kind"] == "class" and "external" not in ea and "ref" not in ea
    resolved = rb(eb) if eb is not None else None
    if (
        eb is None
        or eb.get("kind") == "MISSING"
        or (
            detailed and (resolved is None or resolved["kind"] != "class" or "external" in resolved)
        )
    ):
        extra = member_count(ea, public) if detailed else 0
        R.total[g] += extra
        tail = f"  (class, +{extra} items)" if extra else ""
        if eb is None or eb.get("kind") == "MISSING":
            R.item(g, n + tail, None)
        else:
            R.item(g, n + tail, [f"not a class of this package: {(resolved or {}).get('kind')}"])
        return
    a, b = ra(ea), rb(eb)
    assert a is not None and b is not None
    out = []
    if a["kind"] != b["kind"] and {a["kind"], b["kind"]} != {"function", "callable"}:
        out.append(f"kind {a['kind']} != {b['kind']}")
    if ea.get("in_all") and not eb.get("in_all"):
        out.append("not in __all__")
    if "external" in a and a.get("external") != b.get("external"):
        out.append(f"{a.get('external')} != {b.get('external') or b.get('qualname')}")
    if a["kind"] == "typealias":
        for k in ("literal_values", "members"):
            if a.get(k) is not None and sorted(a[k]) != sorted(b.get(k) or []):
                out.append(f"{k} {a[k]} != {b.get(k)}")
    if a["kind"] == "value" and n not in SKIP_VALUES and a.get("value") != b.get("value"):
        out.append(f"value {a.get('value')} != {b.get('value')}")
    if a["kind"] == "function" and b["kind"] == "function":
        out += cmp_callable(g, n, a, b)
    R.item(g, n, out)
    if a["kind"] == "class" and "external" not in a and "ref" not in ea:
        cmp_class(g, n, a, b, public)


def cmp_groups(A: dict, B: dict) -> None:
    ra, rb = resolver(A), resolver(B)
    public = {n for grp in A["groups"].values() for n in grp["exports"]}
    for g, ga in A["groups"].items():
        gb = B["groups"].get(g, {"exports": {}})
        for n, ea in ga["exports"].items():
            if ea["kind"] == "module":
                ok = gb["exports"].get(n, {}).get("kind") == "module"
                R.item(g, f"{n} [module attr]", [] if ok else None)
                continue
            cmp_export(g, n, ea, gb["exports"].get(n), ra, rb, public)
        for n, eb in gb["exports"].items():
            if n not in ga["exports"] and eb["kind"] != "module":
                R.extra[g].append(n)
    for m, pa in A.get("private", {}).items():
        pb = B.get("private", {}).get(m, {"exports": {}})
        for n, ea in pa["exports"].items():
            cmp_export(
                "private",
                f"{m}.{n}" if "ref" in ea else f"{m}.{n}",
                ea,
                pb["exports"].get(n),
                ra,
                rb,
                public,
            )


def cmp_cli(A: dict, B: dict) -> None:
    for path, ca in A.get("cli", {}).items():
        cb = B.get("cli", {}).get(path)
        if cb is None:
            n = len(ca["params"])
            R.total["cli"] += n
            R.item("cli", path + (f"  (+{n} parameters)" if n else ""), None)
            continue
        R.item("cli", path, [] if ca["kind"] == cb["kind"] else [f"{ca['kind']} != {cb['kind']}"])
        if not cb.get("from_help") and ca.get("short_help") is not None:
            same = " ".join(ca["short_help"].split()) == " ".join(
                (cb.get("short_help") or "").split()
            )
            R.item(
                "cli_text",
                f"{path} [short help]",
                [] if same else [f"{ca['short_help']!r} != {cb.get('short_help')!r}"],
            )
        bp = {
            (p["param_type"], tuple(p["opts"]) if p["param_type"] == "option" else p["name"]): p
            for p in cb["params"]
        }
        for p in ca["params"]:
            key = (p["param_type"], tuple(p["opts"]) if p["param_type"] == "option" else p["name"])
            q = bp.pop(key, None)
            label = f"{path} {'/'.join(p['opts'])}"
            if q is None:
                near = [
                    x
                    for k, x in bp.items()
                    if k[0] == p["param_type"] and set(x["opts"]) & set(p["opts"])
                ]
                if near:
                    R.item("cli", label, [f"opts {p['opts']} != {near[0]['opts']}"])
                else:
                    R.item("cli", label, None)
                continue
            out = []
            if not cb.get("from_help"):
                for k in (
                    "name",
                    "type",
                    "required",
                    "nargs",
                    "multiple",
                    "is_flag",
                    "default",
                    "choices",
                ):
                    if k == "default":
                        # click 8.1 and 8.2+ disagree on how "no default" of a flag is spelled
                        x, y = (
                            None if v in (None, "False", "()") else v for v in (p.get(k), q.get(k))
                        )
                        if not same_default(x, y):
                            out.append(f"default {x} != {y}")
                    elif p.get(k) != q.get(k):
                        out.append(f"{k} {p.get(k)} != {q.get(k)}")
            R.item("cli", label, out)
        for k, q in bp.items():
            R.extra["cli"].append(f"{path} {'/'.join(q['opts'])}")
    for path in B.get("cli", {}):
        if path not in A.get("cli", {}):
            R.extra["cli"].append(path)
    for n, pa in A.get("cli_probes", {}).items():
        pb = B.get("cli_probes", {}).get(n)
        if pb is None:
            R.item("cli_exit_codes", n, None)
            continue
        crashed = "Traceback (most recent call last)" in pb["stderr"] and (
            "Traceback (most recent call last)" not in pa["stderr"]
        )
        R.item(
            "cli_exit_codes",
            n,
            ["crashed with a traceback"]
            if crashed
            else []
            if pa["rc"] == pb["rc"]
            else [f"rc {pa['rc']} != {pb['rc']}"],
        )
        ver = lambda s: re.sub(r"\d+\.\d+\.\d+\S*", "<v>", " ".join(s.split()))  # noqa: E731
        out = []
        for k in ("stdout", "stderr"):
            if ver(pa[k]) != ver(pb[k]):
                out.append(f"{k} {ver(pa[k])[:160]!r} != {ver(pb[k])[:160]!r}")
        R.item("cli_text", f"probe {n}", out)


def cmp_rest(A: dict, B: dict) -> None:
    for m in A.get("modules", []):
        R.item("modules", m, [] if m in set(B.get("modules", [])) else None)
    for m, names in A.get("paths", {}).items():
        here = B.get("paths", {}).get(m)
        if here is None or "error" in here:
            R.item("paths", m, None)
            continue
        for n, whose in names.items():
            if whose == "own":
                R.item("paths", f"{m}.{n}", [] if n in here else None)
    pa, pb = A.get("package", {}), B.get("package", {})
    for k in ("extras", "entry_points"):
        for x in pa.get(k, []):
            y = x.split("=")[0] if k == "entry_points" else x
            have = {z.split("=")[0] if k == "entry_points" else z for z in pb.get(k, [])}
            R.item("package", f"{k}:{y}", [] if y in have else None)
    R.item("package", "py.typed", [] if pa.get("typed") == pb.get("typed") else ["differs"])
    for n, v in A.get("probes", {}).items():
        w = B.get("probes", {}).get(n)
        if w is None:
            R.item("probes", n, None)
        else:
            R.item("probes", n, [] if same_probe(v, w) else [f"{v[:220]}  !=  {w[:220]}"])
    # values that the official client accepts must be accepted; more may be
    for n, v in A.get("arguments", {}).items():
        w = B.get("arguments", {}).get(n)
        R.item(
            "arguments",
            n,
            None if w is None else [] if w == "taken" or v != "taken" else [f"{v}  !=  {w}"],
        )
    # softer view: same outcome (ok / same exception class) whatever the text
    for n, v in A.get("probes", {}).items():
        w = B.get("probes", {}).get(n)
        if w is not None:
            R.item(
                "probes_outcome",
                n,
                [] if outcome(v) == outcome(w) else [f"{outcome(v)} != {outcome(w)}"],
            )


def same_probe(a: str, b: str) -> bool:
    n = lambda s: re.sub(r"(tinker|\w+)(\.\w+)+\.(\w+)'>", r"\3'>", s)  # noqa: E731
    return n(a) == n(b)


def outcome(s: str) -> str:
    return "ok" if s.startswith("ok") else s.split(":")[0]


def main() -> int:
    global OPT
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("reference")
    p.add_argument("candidate")
    p.add_argument("--only", action="append", default=[])
    p.add_argument("--max", type=int, default=60)
    p.add_argument("--annotations", action="store_true")
    p.add_argument("--extras", action="store_true")
    p.add_argument("--strict", action="store_true")
    p.add_argument("--private", action="store_true")
    p.add_argument("--json")
    p.add_argument("--fail-under", type=float)
    OPT = p.parse_args()
    A, B = json.load(open(OPT.reference)), json.load(open(OPT.candidate))
    print(f"reference: {A['meta']}\ncandidate: {B['meta']}")
    if A["meta"].get("torch") != B["meta"].get("torch"):
        print(
            "WARNING: one side was introspected with torch and the other without; probes that need "
            "torch will differ"
        )
    cmp_groups(A, B)
    cmp_cli(A, B)
    cmp_rest(A, B)

    groups = [g for g in R.total if not OPT.only or g in OPT.only]
    soft = {"cli_text", "modules", "probes_outcome"}  # printed, not in the total
    print(
        f"\n{'group':32}{'matched':>16}{'coverage':>10}{'missing':>9}{'differ':>8}{'extra':>7}{'annotations':>18}"
    )
    tm = tt = 0
    for g in groups:
        ok, tot = R.ok[g], R.total[g]
        if g not in soft:
            tm, tt = tm + ok, tt + tot
        at = R.annot_total[g]
        ann = f"{R.annot_ok[g]}/{at}" if at else "-"
        print(
            f"{g + (' *' if g in soft else ''):32}{f'{ok}/{tot}':>16}{100 * ok / tot:>9.1f}%"
            f"{len(R.missing[g]):>9}{len(R.different[g]):>8}{len(R.extra[g]):>7}{ann:>18}"
        )
    pct = 100 * tm / tt if tt else 0.0
    print(f"{'TOTAL (without *)':32}{f'{tm}/{tt}':>16}{pct:>9.1f}%")

    def dump(title: str, lines: list[str]) -> None:
        if not lines:
            return
        print(f"  {title} ({len(lines)})")
        for x in lines[: OPT.max or None]:
            print(f"    {x}")
        if OPT.max and len(lines) > OPT.max:
            print(f"    ... and {len(lines) - OPT.max} more (--max 0)")

    for g in groups:
        if (
            R.missing[g]
            or R.different[g]
            or (OPT.extras and R.extra[g])
            or (OPT.annotations and R.annot[g])
        ):
            print(f"\n== {g}")
            dump("MISSING", R.missing[g])
            dump("DIFFERENT", R.different[g])
            if OPT.annotations:
                dump("annotations (loose, not counted)", R.annot[g])
            if OPT.extras:
                dump("only in candidate", R.extra[g])
    if OPT.json:
        json.dump(
            {
                "coverage": {g: [R.ok[g], R.total[g]] for g in groups},
                "total_pct": pct,
                "missing": R.missing,
                "different": R.different,
                "extra": R.extra,
                "annotations": R.annot,
            },
            open(OPT.json, "w"),
            indent=1,
        )
    return 1 if OPT.fail_under is not None and pct < OPT.fail_under else 0


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
