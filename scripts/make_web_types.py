"""Writes `src/torchloom/web/src/api.ts`, the bodies of the API as TypeScript, from its OpenAPI description.

    python scripts/make_web_types.py           write it
    python scripts/make_web_types.py --check   say whether it is up to date

make_client.py writes it, too; a unit test runs the check.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from make_client import ROOT, class_name, description

OUT = ROOT / "src" / "torchloom" / "web" / "src" / "api.ts"
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def type_of(schema: dict[str, Any]) -> str:
    """A JSON schema as a TypeScript type."""
    if "$ref" in schema:
        return class_name(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(PLAIN[one] for one in kind)
    if kind == "array":
        return f"Array<{type_of(schema.get('items', {}))}>"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {type_of(values) if isinstance(values, dict) else 'unknown'}>"
    return PLAIN.get(str(kind), "unknown")


def source(api: dict[str, Any]) -> str:
    parts = ["// Made by scripts/make_web_types.py from the OpenAPI description of the API.\n"]
    for name, schema in sorted(api["components"]["schemas"].items()):
        made = class_name(name)
        if "properties" not in schema:
            parts.append(f"export type {made} = {type_of(schema)};\n")
            continue
        needed = set(schema.get("required", ()))
        fields = [
            f"  {json.dumps(field) if not field.isidentifier() else field}"
            f"{'' if field in needed or not name.endswith('Request') else '?'}: {type_of(shape)};"
            for field, shape in schema["properties"].items()
        ]
        parts.append(f"export interface {made} {{\n" + "\n".join(fields) + "\n}\n")
    return "\n".join(parts)


def write(api: dict[str, Any]) -> None:
    text = source(api)
    if not OUT.exists() or OUT.read_text() != text:
        OUT.write_text(text)


def main() -> int:
    api = description()
    if "--check" not in sys.argv:
        write(api)
    elif not OUT.exists() or OUT.read_text() != source(api):
        print(f"out of date: {OUT.relative_to(ROOT)}; run python scripts/make_client.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
