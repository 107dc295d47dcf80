"""What records can do besides carrying fields: plain data and back, copies, `dataclasses` and pydantic, safe first reads.

The generated records inherit it and the client's other public types share it; it imports neither `tinker_wire` nor `tinker`.
"""

from tinker_records.records import Record, prepare
from tinker_records.values import FieldInfo, Value

__all__ = ["FieldInfo", "Record", "Value", "prepare"]
