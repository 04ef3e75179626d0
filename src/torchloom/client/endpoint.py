"""Where a torchloom service is and which token to send to it. Opens no connection."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from torchloom import one_host
from torchloom.errors import NotAllowed, NotFound
from torchloom.home import Home

HOST = "127.0.0.1"
_LOOPBACK = re.compile(r"127(\.\d{1,3}){3}")


class NothingHere(NotFound):
    """No stack was ever started for this home, or it was ended."""


@dataclass(frozen=True)
class Endpoint:
    url: str
    token: str = field(repr=False)
    """Not in the repr: a token must not get into a log by way of a traceback."""
    owner: int | None = None
    """The user whose process must answer, where that can be asked: on loopback, with the token of a home.
    After a crash any local user can listen on the port that the home remembers."""
    ca: str = ""
    """File with the authorities (PEM) that prove an https address; empty: the system's."""

    @classmethod
    def find(cls, home: Home | None = None) -> Endpoint:
        """LOOM_ADDRESS with LOOM_TOKEN, else what runs for this home (LOOM_HOME, ~/.torchloom)."""
        where = home or Home.default()
        chosen = os.environ.get("LOOM_ADDRESS")
        if chosen:
            url = with_scheme(chosen)
            if not os.environ.get("LOOM_TOKEN") and not is_loopback(url):
                # The token of this home gives full access to this host; never send it to another one.
                raise NotAllowed("LOOM_ADDRESS is another host and LOOM_TOKEN is not set", hint="set it")
            own = owner_of(where) if is_loopback(url) and not os.environ.get("LOOM_TOKEN") else None
            return cls(url, read_token(where), own, os.environ.get("LOOM_CA", ""))
        return cls.of_home(where)

    @classmethod
    def of_home(cls, home: Home) -> Endpoint:
        """The stack that was started for this home, proven to be its owner's before the token is sent."""
        return cls(local_url(home), read_token(home), owner_of(home), local_ca(home))


def owner_of(home: Home) -> int:
    """The user that a home and its stack belong to."""
    try:
        return home.root.stat().st_uid
    except OSError:
        return os.geteuid()


def with_scheme(address: str) -> str:
    """`host:port` is plain HTTP, as LOOM_ADDRESS may say it."""
    return address if "://" in address else f"http://{address}"


def is_loopback(url: str) -> bool:
    """Whether the address is this host's own."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or _LOOPBACK.fullmatch(host) is not None


def local_url(home: Home) -> str:
    """Address of the stack that was started for this home."""
    try:
        plan = json.loads((home.parts_dir / "plan.json").read_bytes())
        port, scheme = int(plan["port"]), "https" if plan.get("api_ca") else "http"
        host = str(plan.get("host", HOST))
    except (OSError, ValueError, KeyError, TypeError):
        raise NothingHere(
            f"torchloom is not running for {home.root}", hint="start it with `loom up`"
        ) from None
    if host == HOST:
        one_host.refuse_elsewhere(home)
    if not port:
        raise NothingHere(
            f"{home.root} is a node of a cluster and has no service of its own",
            hint="name the cluster with --context or LOOM_ADDRESS",
        )
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def local_ca(home: Home) -> str:
    """What proves the service of this home, if it has TLS."""
    try:
        return str(json.loads((home.parts_dir / "plan.json").read_bytes()).get("api_ca", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def read_token(home: Home) -> str:
    """LOOM_TOKEN, else the token of this home's API."""
    given = os.environ.get("LOOM_TOKEN")
    if given:
        return given
    try:
        return home.token_file.read_text().strip()
    except FileNotFoundError:
        raise NotAllowed(f"{home.token_file} does not exist", hint="set LOOM_TOKEN or LOOM_HOME") from None
    except OSError as error:
        raise NotAllowed(f"{home.token_file} cannot be read ({error.strerror})") from error
