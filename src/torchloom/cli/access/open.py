"""`loom open`: a link that signs a browser in to the page, once."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.endpoint import Endpoint
    from torchloom.client.schema import LoginLink

EXAMPLES = (
    ("loom open", "the page of all jobs"),
    ("loom open demo-3f2a", "the page of one job"),
    ("LOOM_TOKEN=$(loom token create wall) loom open", "a link for a screen that may only read"),
)

NOT_BUILT = "not built: it needs Node 20 or newer at `make setup`; everything else works without it"


def command(
    job: Annotated[str | None, argument(metavar="JOB", help="Open the page of this job.")] = None,
    browser: Annotated[
        bool | None,
        option("--browser/--no-browser", help="Also open it in a browser.", show_default="if there is one"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a link that opens the page, signed in. It works once, within 15 minutes."""
    from torchloom.cli.show import output
    from torchloom.errors import NotFound
    from torchloom.model.ids import check_token

    client = api()
    if job is not None:
        client.summary(check_token(job, "job id"))
    made = client.login_link()
    if not made["page"]:
        raise NotFound("The page is not there", hint=NOT_BUILT)
    link = link_of(client.endpoint, made, job)
    if as_json:
        output.show_json({"link": link, "valid_s": made["valid_s"]})
        return
    print(link)
    if browser if browser is not None else _has_screen():
        import webbrowser

        webbrowser.open(link)


def link_of(endpoint: Endpoint, made: LoginLink, job: str | None = None) -> str:
    """The code is in the fragment, which browsers do not send: it appears in no server or proxy log."""
    return f"{endpoint.url.rstrip('/')}/#/sign-in/{made['code']}" + (f"/job/{job}" if job else "")


def page_line(endpoint: Endpoint) -> str:
    """A link for the end of `loom up`; a service without the page says what to do."""
    from torchloom.client import Client
    from torchloom.errors import LoomError

    try:
        with Client(endpoint) as client:
            made = client.login_link()
    except LoomError:
        return "`loom open` prints a link"
    return f"{link_of(endpoint, made)} (opens once; `loom open` for more)" if made["page"] else NOT_BUILT


def _has_screen() -> bool:
    shown = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and sys.stdout.isatty()
