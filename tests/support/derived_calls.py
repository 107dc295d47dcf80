"""Calls of generated client methods, derived from the contract: a new operation needs no
handwritten call in the tests.

Ids are those that are known, also from earlier answers; everything else is as in the examples of
the document.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from support.contract import Contract, the_contract

SECONDS = 30


@attrs.frozen
class DerivedCall:
    """A client method's name, and its arguments other than ids."""

    operation: str
    client: str
    method: str
    example: Mapping[str, Any]

    def make(self, client: Any, known: dict[str, Any]) -> None:
        """Call the method with its required arguments, and keep the ids in its answer."""
        method = getattr(client, self.method)
        required = [
            name
            for name, one in inspect.signature(method).parameters.items()
            if one.default is one.empty
        ]
        given = {**self.example, **known}
        missing = [name for name in required if name not in given]
        assert not missing, f"{self.operation}: the document has no example of {', '.join(missing)}"
        answer = method(**{name: given[name] for name in required}).result(SECONDS)
        if answer is not None:
            known.update(
                {
                    name: value
                    for name, value in answer.model_dump().items()
                    if name.endswith("_id") and value
                }
            )


def derive_calls(contract: Contract, without: Collection[str] = ()) -> list[DerivedCall]:
    """Return the calls of all operations with methods; deletions last, deepest path first."""
    found = [
        (operation.method.lower() == "delete", -operation.path.count("/"), call)
        for operation in contract.operations.values()
        if operation.id not in without
        for call in _calls(operation.id, operation.node)
    ]
    return [call for _, _, call in sorted(found, key=lambda one: one[:2] if one[0] else (False, 0))]


def _calls(operation: str, node: Mapping[str, Any]) -> Iterator[DerivedCall]:
    """One call: other methods of the operation only spell its ids otherwise."""
    for method in node.get("x-client", [])[:1]:
        yield DerivedCall(
            operation, method["client"], method["name"], example_body(operation) or {}
        )


def example_body(operation: str) -> Any:
    """Return the first example of the JSON body of an operation; None without one."""
    contract = the_contract()
    media = (
        contract.operations[operation]
        .node.get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
    )
    if "example" in media:
        return media["example"]
    first = next(iter(media.get("examples", {}).values()), {})
    if "$ref" in first:
        first = contract.document["components"]["examples"][first["$ref"].rpartition("/")[2]]
    return first.get("value")
