"""Named clusters: the address and token of each, and the current one. Owns the contexts file (0600).

A context is just a name for LOOM_ADDRESS and LOOM_TOKEN: choosing one sets both for this process, so
everything else knows only the environment. Without a context, commands talk to the stack of this host's home.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchloom.cli.service.parts import write_private
from torchloom.errors import NotAllowed, NotFound, UsageError
from torchloom.home import private_directory
from torchloom.model.ids import check_token

LOCAL = "local"
"""The stack of this host's home; always available, in no file."""


@dataclass
class Contexts:
    current: str
    named: dict[str, dict[str, str]]
    """Name → url, token."""

    @classmethod
    def read(cls) -> Contexts:
        path = contexts_file()
        try:
            found: dict[str, Any] = json.loads(path.read_bytes())
            named = {
                str(name): {"url": str(entry["url"]), "token": str(entry["token"])}
                for name, entry in found["contexts"].items()
            }
            current = str(found["current"])
        except FileNotFoundError:
            return cls(LOCAL, {})
        except OSError as error:
            raise NotAllowed(f"{path} cannot be read ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            # It holds tokens that are nowhere else: never treat it as empty and overwrite it.
            raise UsageError(f"{path} is damaged", hint="fix it, or move it away") from None
        return cls(current if current in named else LOCAL, named)

    def write(self) -> None:
        path = contexts_file()
        private_directory(path.parent)
        write_private(path, {"current": self.current, "contexts": self.named})

    def check(self, name: str) -> str:
        """The name, if there is such a context."""
        if name != LOCAL and name not in self.named:
            known = ", ".join((LOCAL, *self.named))
            raise NotFound(f"There is no context {name!r}", hint=f"there are {known}")
        return name

    def add(self, name: str, url: str, token: str) -> None:
        """Add or replace a context."""
        if check_token(name, "context name") == LOCAL:
            raise UsageError(f"The context {LOCAL!r} is always this host's own stack.")
        self.named[name] = {"url": url, "token": token}

    def remove(self, name: str) -> None:
        self.check(name)
        if name == LOCAL:
            raise UsageError(f"The context {LOCAL!r} cannot be removed.")
        del self.named[name]
        if self.current == name:
            self.current = LOCAL


def contexts_file() -> Path:
    """In LOOM_HOME if that is set, else among the user's settings: clusters outlive one home."""
    chosen = os.environ.get("LOOM_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute() / "contexts.json"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "torchloom" / "contexts.json"


def choose(flag: str | None, home_given: bool = False) -> str:
    """Apply the chosen context to this process and return its name.

    --context, else --home (this host), else LOOM_ADDRESS, else LOOM_CONTEXT, else the current one.
    """
    if flag is None and (home_given or os.environ.get("LOOM_ADDRESS")):
        return LOCAL
    contexts = Contexts.read()
    name = contexts.check(flag or os.environ.get("LOOM_CONTEXT") or contexts.current)
    if name == LOCAL:
        if flag is not None and os.environ.pop("LOOM_ADDRESS", ""):
            # A token for that address is not valid on this host.
            os.environ.pop("LOOM_TOKEN", None)
        return name
    os.environ["LOOM_ADDRESS"] = contexts.named[name]["url"]
    os.environ["LOOM_TOKEN"] = contexts.named[name]["token"]
    return name
