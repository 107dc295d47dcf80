"""Turn the operations that answer a future into the input of the template of runs.py: what each
results in, and the requests of a training run, which get their number when they are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen.client_methods import Argument, argument_of, qualify
from codegen.operations import OperationSpec
from codegen.schemas import Field, Models, RecordSpec

#: The fields that a run fills in when a request is sent, and the one whose constant is the kind of
#: a request.
MODEL, NUMBER, KIND = "model_id", "seq_id", "type"


@dataclass(frozen=True)
class Submitted:
    """An operation that answers a future."""

    operation: OperationSpec
    #: The fields of its body; none where that is not a record.
    fields: dict[str, Field]
    #: The fields and the headers that the caller gives, and their defaults.
    arguments: list[Argument]
    headers: list[Argument]

    @property
    def kind(self) -> str:
        """Return what polls ask for, in snake_case: the constant of the body, or the operation."""
        return (
            (self.fields[KIND].factory or "").strip("'\"")
            if KIND in self.fields
            else self.operation.operation_id
        )

    @property
    def is_of_run(self) -> bool:
        return MODEL in self.fields and self.operation.reply is not None


def read_submitted(operations: list[OperationSpec], models: Models) -> list[Submitted]:
    """Return the operations that answer a future, in the order of the document."""
    fields_of = {
        record.name: {item.name: item for item in record.fields}
        for record in models.definitions
        if isinstance(record, RecordSpec)
    }
    return [
        Submitted(operation, fields, [field_argument(item, models) for item in given], headers)
        for operation in operations
        if operation.result is not None
        for fields in [fields_of.get(operation.body or "", {})]
        for given in [[fields[name] for name in fields if name not in (MODEL, NUMBER, KIND)]]
        for headers in [[argument_of(item, frozenset()) for item in operation.parameters]]
    ]


def field_argument(item: Field, models: Models) -> Argument:
    """Return an argument for a field. A default that is one value for all calls is its default."""
    plain = item.factory is not None and item.factory[-1] not in ")]}"
    default = item.factory if plain else "None" if item.optional else None
    return Argument(item.name, qualify(item, models), item.doc, default)
