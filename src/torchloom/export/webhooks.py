"""The private file that names receivers of incidents, and what they are sent.

    [[webhook]]
    url = "https://hooks.example.com/T0/B0/abc"
    format = "slack"            # or "json", the default
    secret = "…"                # optional: signs every request
    jobs = ["train-*"]          # optional: only these
    kinds = ["crash", "hang"]   # optional: only these
    link = "https://loom.example.com"   # optional: where people reach the page

An address is a secret as well (whoever knows it can post), so it is never in a command line or a log.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchloom.errors import UsageError

FORMATS = ("json", "slack")
_FIELDS = frozenset({"url", "format", "secret", "jobs", "kinds", "link"})


@dataclass(frozen=True)
class Webhook:
    url: str
    format: str = "json"
    secret: str = ""
    jobs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    link: str = ""

    @property
    def name(self) -> str:
        """What may be shown of it: the host."""
        return urlsplit(self.url).hostname or "?"

    def wants(self, incident: dict[str, Any]) -> bool:
        """Whether this receiver asked for such incidents."""
        job = not self.jobs or any(fnmatchcase(incident["job"], pattern) for pattern in self.jobs)
        return job and (not self.kinds or incident["kind"] in self.kinds)


def read_webhooks(path: Path) -> list[Webhook]:
    """The receivers of a file that only its owner may read."""
    try:
        found = os.stat(path)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"There is no {path}", hint="docs/export.md shows how to write it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}).") from error
    if found.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(found.st_mode) & 0o077:
        raise UsageError(f"{path} holds secrets and others may read it", hint=f"chmod 600 {path}")
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}.") from error
    entries = content.get("webhook")
    if set(content) - {"webhook"} or not isinstance(entries, list) or not entries:
        raise UsageError(f"{path} has no [[webhook]] entry.")
    return [_webhook(entry, f"{path}, webhook {number}") for number, entry in enumerate(entries, 1)]


def _webhook(entry: Any, where: str) -> Webhook:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: an entry is a table, [[webhook]].")
    if unknown := set(entry) - _FIELDS:
        raise UsageError(f"{where}: unknown field {', '.join(sorted(map(str, unknown)))}.")
    for name in ("url", "format", "secret", "link"):
        if not isinstance(entry.get(name, ""), str):
            raise UsageError(f"{where}: {name} is a text.")
    for name in ("jobs", "kinds"):
        values = entry.get(name, [])
        if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
            raise UsageError(f"{where}: {name} is a list of texts.")
    if not _is_address(entry.get("url", "")):
        raise UsageError(f"{where}: url begins with http:// or https://.")
    if entry.get("format", "json") not in FORMATS:
        raise UsageError(f"{where}: format is {' or '.join(FORMATS)}.")
    return Webhook(**(entry | {name: tuple(entry.get(name, ())) for name in ("jobs", "kinds")}))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket that is not closed, a port that is no number
        return False


def message(hook: Webhook, state: str, incident: dict[str, Any]) -> dict[str, Any]:
    """The body of a request: `state` is opened or ended."""
    link = f"{hook.link.rstrip('/')}/#/incident/{incident['id']}" if hook.link else ""
    if hook.format == "json":
        return {"event": f"incident.{state}", "incident": incident, "link": link}
    job, kind = _plain(incident["job"]), _plain(incident["kind"])
    if state == "opened":
        lines = [f"*{kind}* in *{job}*", _plain(incident["verdict"])]
        if incident["decision"]:
            lines.append(f"Decision: {_plain(incident['decision'])}")
    else:
        lines = [f"*{kind}* in *{job}* is over", _plain(incident["resolution"] or incident["verdict"])]
    return {"text": "\n".join([*lines, link] if link else lines)}


def _plain(text: str) -> str:
    """Text in which a chat finds no link, mention or control character."""
    shown = "".join(c if c >= " " else " " for c in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")[:2000]
