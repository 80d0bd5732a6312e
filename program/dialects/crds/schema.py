"""Classes and functions that declare schemas of custom resources, and the generator of their OpenAPI schemas. Pure.

The `schema` package of every dialect declares its kinds with `CrdModel`, `optional` and `required`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic.alias_generators import to_camel

from kubeapi.json_types import Json

Int64 = Annotated[int, WithJsonSchema({"type": "integer", "format": "int64"})]
"""An integer that the upstream project types as int64; plain `int` becomes int32."""
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""An RFC 3339 time, kept as text."""


class CrdModel(BaseModel):
    """Part of a custom resource: camelCase on the wire, types never coerced.

    Unknown fields are kept in `model_extra`, so that a parser can report them. Therefore an object for a newer release
    of the upstream project, or with the upstream project's CRDs, is read and not refused. An empty text in an optional
    field counts as absent, because Helm charts write it for unset values.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="allow",
        alias_generator=to_camel,
        populate_by_name=True,
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty_texts(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "" not in value.values():
            return value
        optional_names = {info.alias or name for name, info in cls.model_fields.items() if not info.is_required()}
        return {name: member for name, member in value.items() if member != "" or name not in optional_names}


def optional(description: str, default: Any = None, *, name: str | None = None, **rules: Any) -> Any:
    """Declare a field that may be absent. `name` is its wire name, if camelCase would be wrong."""
    return _field(default, description, name, rules)


def required(description: str, *, name: str | None = None, **rules: Any) -> Any:
    """Declare a field that must be present."""
    return _field(..., description, name, rules)


def _field(default: Any, description: str, name: str | None, rules: Json) -> Any:
    extra = {key.replace("_", "-"): rules.pop(key) for key in list(rules) if key.startswith("x_")}
    if "format" in rules:
        extra["format"] = rules.pop("format")
    # A type with its own schema, such as Int64, would not include these.
    extra.update({word: rules[rule] for rule, word in (("ge", "minimum"), ("le", "maximum")) if rule in rules})
    return Field(default, description=description or None, alias=name, json_schema_extra=extra or None, **rules)


WORDS_OF_PATTERNS: dict[str, str] = {}
"""What a value must be, by its pattern, for messages. Patterns of few characters explain themselves."""


def in_words(pattern: str, words: str) -> str:
    """Return a pattern. Messages have `words` in its place: the end of a sentence that starts with the value."""
    WORDS_OF_PATTERNS[pattern] = words
    return pattern


def rule(expression: str, message: str, *, field: str = "") -> Json:
    """Return a CEL rule of `x-kubernetes-validations`. `field` is the path of the error, such as `.minReplicas`."""
    return {"rule": expression, "message": message, **({"fieldPath": field} if field else {})}


_KEPT = (
    "description",
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "default",
)


def structural_schema(model: type[BaseModel], *, integers: str = "int32") -> Json:
    """Return the structural schema of `model`: references inlined, titles dropped, null never a type.

    `integers` is the default format of integers. A field that accepts null and has another default stays nullable,
    because null and absence then differ.
    """
    document = model.model_json_schema(by_alias=True)
    return _structural(document, document.get("$defs", {}), integers)


def _structural(node: Json, definitions: Json, integers: str) -> Json:
    if "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        return _structural({**target, **{k: v for k, v in node.items() if k != "$ref"}}, definitions, integers)
    if "anyOf" in node:
        return _choice(node, definitions, integers)
    found = {key: node[key] for key in _KEPT if key in node}
    if "description" in found:
        found["description"] = " ".join(found["description"].partition("\n\n")[0].split())
    found.update({key: value for key, value in node.items() if key.startswith("x-")})
    if (words := WORDS_OF_PATTERNS.get(found.get("pattern", ""))) is not None:
        # The API server would answer with the pattern itself.
        expression = f"self.matches({json.dumps(found.pop('pattern'))})"
        found["x-kubernetes-validations"] = [rule(expression, words)]
    if "const" in node:
        found["enum"] = [node["const"]]
    if found.get("type") == "integer":
        found.setdefault("format", integers)
    if "items" in node:
        found["items"] = _structural(node["items"], definitions, integers)
    if "properties" in node:
        found["properties"] = {k: _structural(v, definitions, integers) for k, v in node["properties"].items()}
        if node.get("required"):
            found["required"] = sorted(node["required"])
    elif isinstance(node.get("additionalProperties"), dict):
        found["additionalProperties"] = _structural(node["additionalProperties"], definitions, integers)
    elif found.get("type") == "object":
        found["x-kubernetes-preserve-unknown-fields"] = True
    if found.get("default", "") in (None, [], {}):
        del found["default"]
    return found


def _choice(node: Json, definitions: Json, integers: str) -> Json:
    """Resolve a union: a type with null is that type; integer or string is Kubernetes' `int-or-string`."""
    options = [option for option in node["anyOf"] if option.get("type") != "null"]
    outer = {k: v for k, v in node.items() if k != "anyOf"}
    if len(options) == 1:
        found = _structural({**options[0], **outer}, definitions, integers)
        if len(node["anyOf"]) > 1 and node.get("default") is not None:
            found["nullable"] = True
        return found
    if sorted(option.get("type", "") for option in options) != ["integer", "string"]:
        raise TypeError(f"no structural schema for the union {options}")
    found = {
        key: value
        for key, value in outer.items()
        if key in ("description", "pattern", "maxLength") or key.startswith("x-")
    }
    found["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    found["x-kubernetes-int-or-string"] = True
    return found
