"""A path that older code imports from; made by tools/older_paths.py."""

from tinker.types import AuditLogEntry, AuditLogResponse

__all__ = ["AuditLogEntry", "AuditLogResponse"]
