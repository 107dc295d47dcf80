"""Credentials: a client of these bindings sends one key in one header, so every other way in is
refused.
"""

from __future__ import annotations

from codegen.document import DOCUMENTATION, DocumentNode, is_list

SCHEME = DOCUMENTATION | {"type", "in", "name"}


def check_document_security(root: DocumentNode) -> None:
    """Check the schemes of the document and its requirements for every operation."""
    components = root["components"]
    schemes = list(components["securitySchemes"].items()) if "securitySchemes" in components else []
    for name, scheme in schemes:
        if (scheme.get("type"), scheme.get("in")) != ("apiKey", "header"):
            raise scheme.refusal(
                f"{name} is not sent: clients send a key in a header (`type: apiKey`, `in: header`)"
            )
        scheme.only(SCHEME, "a security scheme")
    if len(schemes) > 1:
        raise components["securitySchemes"].refusal(
            "clients send one key; here are several schemes"
        )
    check_security(root)


def check_security(node: DocumentNode) -> None:
    """Check that the document or an operation demands the one scheme, or nothing."""
    if "security" not in node:
        return
    demanded = node["security"].value
    known = node.root["components"].get("securitySchemes", {})
    if not is_list(demanded) or demanded not in ([], [{name: [] for name in known}]):
        raise node["security"].refusal(
            f"only {' and '.join(known) or 'nothing'} is sent, or nothing where this is empty"
        )
