"""Discriminated unions and records: what their parts are, and that they agree with each other."""

from __future__ import annotations

from codegen.document import DocumentNode, component


def is_union(node: DocumentNode) -> bool:
    return "oneOf" in node.mapping() and "x-any" not in node


def discriminator(node: DocumentNode) -> str:
    if "discriminator" not in node:
        raise node.refusal(
            "a union without a discriminator cannot be decoded; add discriminator and mapping"
        )
    node["discriminator"].only(frozenset({"propertyName", "mapping"}), "a discriminator")
    if "propertyName" not in node["discriminator"] or "mapping" not in node["discriminator"]:
        raise node["discriminator"].refusal("propertyName and mapping are needed")
    return node["discriminator"].text("propertyName")


def members(node: DocumentNode, tag_field: str) -> dict[str, str]:
    """Return tag -> member of a union; mapping, `oneOf` and each member's const property must
    agree.
    """
    listed = [member.ref_name("schemas") for member in refs(node["oneOf"])]
    found: dict[str, str] = {}
    for tag, target in node["discriminator"]["mapping"].items():
        found[tag] = DocumentNode({"$ref": target.value}, target.pointer, node.root).ref_name(
            "schemas"
        )
        check_const(target, found[tag], tag_field, tag)
    if sorted(found.values()) != sorted(listed):
        raise node.refusal(f"oneOf lists {sorted(listed)}, the mapping {sorted(found.values())}")
    return found


def check_const(mapping: DocumentNode, member: str, tag_field: str, tag: str) -> None:
    record = component(mapping, "schemas", member)
    const = (
        record["properties"][tag_field].get("const") if has_property(record, tag_field) else None
    )
    if const != tag:
        raise mapping.refusal(
            f"the mapping says {tag!r}, but "
            f"{record.pointer}/properties/{tag_field} has const {const!r}"
        )


def has_property(record: DocumentNode, name: str) -> bool:
    return "properties" in record and name in record["properties"]


def refs(node: DocumentNode) -> list[DocumentNode]:
    for element in node.elements():
        if "$ref" not in element.mapping():
            raise element.refusal(
                "an unnamed member; name it in components.schemas and refer to it"
            )
        element.only(frozenset({"$ref"}), "a member of a union")
    return node.elements()


def mandatory_names(node: DocumentNode) -> set[str]:
    if "required" not in node:
        return set()
    names = [element.value for element in node["required"].elements()]
    for element in node["required"].elements():
        if element.value not in node["properties"]:
            raise element.refusal(f"{element.value!r} is required but not a property")
    return set(names)
