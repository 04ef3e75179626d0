"""`loom context`: names for several clusters. `contexts.py` owns the file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JsonOption

HELP = "Name clusters, and choose which one commands talk to."
EXAMPLES = (
    ("loom context add prod https://train.example:8700", "asks for the token; LOOM_TOKEN and stdin work too"),
    ("loom context use prod", "use it for all commands from now on"),
    ("loom ps --context local", "this command only: this host's own stack"),
)

NameArgument = Annotated[str, argument(metavar="NAME", help="Name of the context.")]


def show(as_json: JsonOption = False) -> None:
    """List the contexts; a star marks the current one."""
    from torchloom.cli.access.contexts import LOCAL, Contexts
    from torchloom.cli.show import output

    contexts = Contexts.read()
    urls = {LOCAL: _local_url()} | {name: entry["url"] for name, entry in contexts.named.items()}
    rows = [{"name": name, "url": url, "current": name == contexts.current} for name, url in urls.items()]
    if as_json:
        output.show_json(rows)
        return
    output.table(
        ("", "CONTEXT", "ADDRESS"),
        (("*" if row["current"] else "", f"{row['name']}", f"{row['url'] or 'not running'}") for row in rows),
        nothing="",
    )


def use(name: NameArgument) -> None:
    """Make a context the current one; `local` is this host."""
    from torchloom.cli.access.contexts import Contexts

    contexts = Contexts.read()
    contexts.current = contexts.check(name)
    contexts.write()
    print(f"commands now talk to {name}")


def add(
    name: NameArgument,
    url: Annotated[str, argument(metavar="URL", help="Address, https://host:port.")],
    token_file: Annotated[
        Path | None, option("--token-file", help="File with the token; - for stdin.")
    ] = None,
) -> None:
    """Add or replace a context. Prompts for the token and never takes it from the command line."""
    from urllib.parse import urlsplit

    from torchloom.cli.access.contexts import Contexts
    from torchloom.client.endpoint import is_loopback, with_scheme
    from torchloom.errors import UsageError

    address = with_scheme(url).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise UsageError(f"{url!r} is not an address", hint="write https://host:port")
    contexts = Contexts.read()
    contexts.add(name, address, _token(token_file))
    contexts.write()
    print(f"{name} added; `loom context use {name}` makes it the current one")
    if parts.scheme == "http" and not is_loopback(address):
        print("loom: the token travels unencrypted to this address; https is safer.", file=sys.stderr)


def remove(name: NameArgument) -> None:
    """Remove a context and its token from the file."""
    from torchloom.cli.access.contexts import Contexts

    contexts = Contexts.read()
    contexts.remove(name)
    contexts.write()
    print(f"{name} removed")


def _token(file: Path | None) -> str:
    """From a file, LOOM_TOKEN, stdin or a hidden prompt: everybody can read /proc/*/cmdline."""
    from torchloom.errors import NotAllowed, UsageError

    if file is not None and str(file) != "-":
        try:
            token = file.expanduser().read_text().strip()
        except OSError as error:
            raise NotAllowed(f"{file} cannot be read ({error.strerror}).") from error
    elif file is None and os.environ.get("LOOM_TOKEN"):
        token = os.environ["LOOM_TOKEN"]
    elif sys.stdin.isatty():
        from getpass import getpass

        token = getpass("token: ").strip()
    else:
        token = sys.stdin.readline().strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError("That is not a token.")
    return token


def _local_url() -> str:
    from torchloom.client.endpoint import NothingHere, local_url
    from torchloom.home import Home

    try:
        return local_url(Home.default())
    except NothingHere:
        return ""


SUBVERBS = {"list": show, "use": use, "add": add, "remove": remove}
