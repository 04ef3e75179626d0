"""Writes `torchloom/client/schema.py`, `operations.py` and the page's types from the OpenAPI description.

    python scripts/make_client.py           write them
    python scripts/make_client.py --check   say whether they are up to date

Run it after every change of a route or of a body; a unit test runs the check.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "src" / "torchloom" / "client"
MADE = "Made by scripts/make_client.py from the OpenAPI description"
PREFIX = "/api/v1"
PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
KEYWORDS = {"from": "from_"}


def description() -> dict[str, Any]:
    from torchloom.api.app import create_app

    class Nobody:
        ready = True

    # Nothing here is ever used to serve.
    nobody: Any = Nobody()
    found: dict[str, Any] = create_app(nobody, nobody, "0").openapi()
    return found


def type_of(schema: dict[str, Any]) -> str:
    """A JSON schema as a Python type expression."""
    if "$ref" in schema:
        return class_name(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    if "enum" in schema:
        return f"Literal[{', '.join(repr(value) for value in schema['enum'])}]"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(PLAIN[one] for one in kind)
    if kind == "array":
        return f"list[{type_of(schema.get('items', {}))}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {type_of(values) if isinstance(values, dict) else 'Any'}]"
    return PLAIN.get(str(kind), "Any")


def class_name(name: str) -> str:
    return re.sub(r"\W|_(?=[A-Z])", "", name.removesuffix("-Output").replace("-Input", "Input"))


def sent_bodies(api: dict[str, Any]) -> set[str]:
    """Names of the bodies that callers write, with all that is inside of them."""
    schemas, found = api["components"]["schemas"], set[str]()
    todo: list[Any] = [op.get("requestBody") for item in api["paths"].values() for op in item.values()]
    while todo:
        for name in re.findall(r"#/components/schemas/([\w-]+)", str(todo.pop())):
            if name not in found:
                found.add(name)
                todo.append(schemas[name])
    return found


def schema_source(api: dict[str, Any]) -> str:
    bodies, sent = [], sent_bodies(api)
    for name, schema in sorted(api["components"]["schemas"].items()):
        if name in ("HTTPValidationError", "ValidationError"):
            continue
        if "properties" not in schema:
            bodies.append(f"{class_name(name)} = {type_of(schema)}\n")
            continue
        # An answer holds all of its fields; only what is sent may leave some out.
        needed = set(schema.get("required", ()) if name in sent else schema["properties"])
        lines = [f"class {class_name(name)}(TypedDict):"]
        if schema.get("description"):
            lines.append(f"    {docstring(schema['description'], ' ' * 4)}\n")
        for field, shape in schema["properties"].items():
            kind = type_of(shape)
            lines.append(f"    {field}: {kind if field in needed else f'NotRequired[{kind}]'}")
            if shape.get("description"):
                lines.append(f"    {docstring(shape['description'], ' ' * 4)}")
        bodies.append("\n".join(lines) + "\n")
    text = "\n\n".join(bodies)
    names = [n for n in ("Any", "Literal", "NotRequired", "TypedDict") if re.search(rf"\b{n}\b", text)]
    head = f'"""{MADE}.\n\nEvery body as a type; may have over 400 lines.\n"""\n\n'
    return head + f"from __future__ import annotations\n\nfrom typing import {', '.join(names)}\n\n\n{text}"


def operations_source(api: dict[str, Any]) -> str:
    methods, used = [], set()
    for path, item in api["paths"].items():
        for verb, operation in item.items():
            if verb in ("get", "post", "put", "patch", "delete"):
                text = method_source(path.removeprefix(PREFIX), verb.upper(), operation, api)
                used |= set(re.findall(r"(?<![\w\"'])[A-Z]\w+", text))
                methods.append(text)
    bodies = {class_name(name) for name in api["components"]["schemas"]}
    imported = sorted(used & bodies, key=str.casefold)
    text = "\n".join(methods)
    typing = [name for name in ("Any", "Literal") if re.search(rf"\b{name}\b", text)]
    return (
        f'"""{MADE}.\n\nEvery operation as a method; may have over 400 lines.\n"""\n\n'
        "from __future__ import annotations\n\n"
        "from collections.abc import Iterator\n"
        f"from typing import TYPE_CHECKING{''.join(f', {name}' for name in typing)}\n"
        "from urllib.parse import quote\n\n"
        "from torchloom.client.transport import Event, Transport\n\n"
        "if TYPE_CHECKING:\n"
        f"    from torchloom.client.schema import {', '.join(imported)}\n\n\n"
        f"class Operations(Transport):\n{text}"
    )


def method_source(path: str, verb: str, operation: dict[str, Any], api: dict[str, Any]) -> str:
    places = [p for p in operation.get("parameters", ()) if p["in"] == "path"]
    query = [p for p in operation.get("parameters", ()) if p["in"] == "query"]
    headers = [p for p in operation.get("parameters", ()) if p["in"] == "header"]
    streams, result = answer_of(operation)
    arguments = ["self", *(f"{p['name']}: {type_of(p['schema'])}" for p in places)]
    body = operation.get("requestBody")
    if body:
        kind = type_of(next(iter(body["content"].values()))["schema"])
        optional = not body.get("required") and "None" not in kind
        kind = f"{kind} | None" if optional else kind
        arguments.append(f"body: {kind}" + ("" if body.get("required") else " = None"))
    keywords = [keyword(p) for p in (*query, *headers)]
    if keywords:
        arguments += ["*", *keywords]
    for p in places:
        path = path.replace(f"{{{p['name']}}}", f"{{quote({p['name']}, safe='')}}")
    target = 'f"' + path + '"' if places else repr(path)
    lines = [f"    def {snake(operation['operationId'])}({', '.join(arguments)}) -> {result}:"]
    said = operation.get("description") or operation.get("summary", "")
    if said:
        lines.append(f"        {docstring(said, ' ' * 8)}")
    pairs = "{" + ", ".join(f"{p['name']!r}: {argument(p['name'])}" for p in query) + "}"
    if streams:
        last = "last_event_id" if any(p["name"].lower() == "last-event-id" for p in headers) else "None"
        rest = f", **{pairs}" if query else ""
        lines.append(f"        return self.stream({target}, {last}{rest})")
    else:
        extra = f", {pairs}" if query else ""
        extra += ", body=body" if body else ""
        if headers:
            extra += ", headers={" + ", ".join(f"{p['name']!r}: {argument(p['name'])}" for p in headers) + "}"
        call = f"self.request({verb!r}, {target}{extra})"
        if result == "None":
            lines.append(f"        {call}")
        else:
            lines += [f"        found: {result} = {call}", "        return found"]
    return "\n".join(lines) + "\n"


def answer_of(operation: dict[str, Any]) -> tuple[bool, str]:
    """Whether it streams, and the type of what comes back."""
    for status, answer in sorted(operation["responses"].items()):
        if not status.startswith("2"):
            continue
        content = answer.get("content", {})
        if "text/event-stream" in content:
            return True, "Iterator[Event]"
        if "application/json" in content:
            return False, type_of(content["application/json"]["schema"])
        if content:
            return False, "str"
    return False, "None"


def keyword(parameter: dict[str, Any]) -> str:
    kind = type_of(parameter["schema"])
    if not parameter.get("required"):
        # Left out of the request when it is not given, so the server's default holds.
        kind = kind if "None" in kind.split(" | ") else f"{kind} | None"
        return f"{argument(parameter['name'])}: {kind} = None"
    return f"{argument(parameter['name'])}: {kind}"


def argument(name: str) -> str:
    plain = name.lower().replace("-", "_")
    return KEYWORDS.get(plain, plain)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def docstring(text: str, indent: str) -> str:
    words = text.strip().replace("\\", "\\\\").replace('"""', "'''")
    if "\n" in words or len(words) > 95:
        import textwrap

        rows = [row for part in words.split("\n") for row in (textwrap.wrap(part, 96) or [""])]
        return '"""' + f"\n{indent}".join(rows) + f'\n{indent}"""'
    return f'"""{words}"""'


def formatted(name: str, text: str) -> str:
    found = Path(sys.executable).with_name("ruff")
    ruff = str(found) if found.exists() else shutil.which("ruff") or "ruff"
    for step in (["check", "--quiet", "--fix", "--exit-zero"], ["format"]):
        command = [ruff, *step, "--stdin-filename", str(CLIENT / name), "-"]
        text = subprocess.run(
            command, cwd=ROOT, input=text, capture_output=True, text=True, check=True
        ).stdout
    return text


def main() -> int:
    api = description()
    stale = []
    for name, text in (("schema.py", schema_source(api)), ("operations.py", operations_source(api))):
        made, path = formatted(name, text), CLIENT / name
        if path.exists() and path.read_text() == made:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(made)
    if "--check" not in sys.argv:  # the page's types have a check of their own
        import make_web_types

        make_web_types.write(api)
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run python scripts/make_client.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
