"""`loom token`: named tokens, so that the audit says who did what. Tokens are kept by the service, hashed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from torchloom.cli.options import JsonOption, api

HELP = "Make, list and remove tokens of the API."
EXAMPLES = (
    ("loom token create alice --role admin", "prints it once; only its hash is kept"),
    ("loom token create oncall --role operator", "jobs, but no tokens and no faults"),
    ("loom token create dashboard", "may only read"),
    ("export LOOM_TOKEN=$(loom token show)", "the one commands use now"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, for the audit.")]


_MAY = {"admin": "do everything", "operator": "do everything with jobs but inject faults", "read": "read"}


def create(
    name: NameArgument,
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="admin, operator or read.")] = "read",
    as_json: JsonOption = False,
) -> None:
    """Make a token and print it. It is shown this once."""
    from torchloom.cli.show import output
    from torchloom.cli.show.states import Role, check

    made = api().make_token({"name": name, "role": check([role], Role, "--role")[0]})
    if as_json:
        output.show_json(made)
        return
    # The token alone on stdout, so that it can be put into a file or a variable.
    print(made["token"])
    print(f"loom: {name} may {_MAY[role]} with it.", file=sys.stderr)


def show_all(as_json: JsonOption = False) -> None:
    """List the tokens there are, without the tokens themselves."""
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
    """Remove a token; it opens nothing from then on."""
    from torchloom.cli.show import output

    api().remove_token(name)
    if as_json:
        output.show_line({"name": name, "removed": True})
    else:
        print(f"{name} removed")


def show() -> None:
    """Print the token that commands use now."""
    print(api().endpoint.token)


def whoami(as_json: JsonOption = False) -> None:
    """Show the name and the role of the token that commands use now."""
    from torchloom.cli.show import output

    me = api().whoami()
    if as_json:
        output.show_json(me)
    else:
        print(f"{me['name']} ({me['role']})")


SUBVERBS = {"create": create, "list": show_all, "remove": remove, "show": show, "whoami": whoami}
