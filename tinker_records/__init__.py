"""What records can do besides carrying fields: plain data and back, copies, `dataclasses` and
pydantic, safe first reads.

It also finds the names that misspelled ones were meant to be. The generated records inherit it and
the client's other public types share it; it imports neither `tinker_wire` nor `tinker`.
"""

from tinker_records.names import (
    ABSENT,
    LIKENESS,
    LOSSES_OF_METHODS,
    advise,
    explain_change,
    find_closest,
    find_meant,
    is_misspelled,
    suggest,
    suggest_argument,
    suggest_arguments,
    suggest_loss,
    suggest_name,
)
from tinker_records.records import Record, RecordType, prepare, sent
from tinker_records.values import Described, FieldInfo, Value

__all__ = [
    "ABSENT",
    "LIKENESS",
    "LOSSES_OF_METHODS",
    "Described",
    "FieldInfo",
    "Record",
    "RecordType",
    "Value",
    "advise",
    "explain_change",
    "find_closest",
    "find_meant",
    "is_misspelled",
    "prepare",
    "sent",
    "suggest",
    "suggest_argument",
    "suggest_arguments",
    "suggest_loss",
    "suggest_name",
]
