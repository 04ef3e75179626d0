"""`loom token`: named tokens, so that the audit shows who did what. The service keeps only their hashes."""

from __future__ import annotations

import sys
from typing import Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JsonOption, api

HELP = "Create, list and remove API tokens."
EXAMPLES = (
    ("loom token create alice --role admin", "prints it once; only its hash is kept"),
    ("loom token create oncall --role operator", "may run jobs, but not manage tokens or inject faults"),
    ("loom token create dashboard", "may only read"),
    ("export LOOM_TOKEN=$(loom token show)", "the token that commands use"),
)

NameArgument = Annotated[str, argument(metavar="NAME", help="Name of the token, for the audit.")]


_MAY = {"admin": "do everything", "operator": "do everything with jobs but inject faults", "read": "read"}


def create(
    name: NameArgument,
    role: Annotated[str, option("--role", metavar="ROLE", help="admin, operator or read.")] = "read",
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it. It is shown only once."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import Role, check

    made = api().make_token({"name": name, "role": check([role], Role, "--role")[0]})
    if as_json:
        output.show_json(made)
        return
    # Only the token on stdout, so that it can go into a file or a variable.
    print(made["token"])
    print(f"loom: {name} may {_MAY[role]} with it.", file=sys.stderr)


def show_all(as_json: JsonOption = False) -> None:
    """List token names and roles, not the tokens themselves."""
    from torchloom.cli.show import output

    found = api().tokens()
    if as_json:
        output.show_json(found)
        return
    output.table(
        ("NAME", "ROLE", "CREATED"),
        ((token["name"], token["role"], output.clock(token["created_at_ns"])) for token in found),
        nothing="no tokens",
    )


def remove(name: NameArgument, as_json: JsonOption = False) -> None:
    """Remove a token; the API refuses it from then on."""
    from torchloom.cli.show import output

    api().remove_token(name)
    if as_json:
        output.show_line({"name": name, "removed": True})
    else:
        print(f"{name} removed")


def show() -> None:
    """Print the token that commands use."""
    print(api().endpoint.token)


def whoami(as_json: JsonOption = False) -> None:
    """Show the name and role of the token that commands use."""
    from torchloom.cli.show import output

    me = api().whoami()
    if as_json:
        output.show_json(me)
    else:
        print(f"{me['name']} ({me['role']})")


SUBVERBS = {"create": create, "list": show_all, "remove": remove, "show": show, "whoami": whoami}
