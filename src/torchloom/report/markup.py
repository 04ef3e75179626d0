"""Escaped HTML and the frame of a page: one file, light and dark, no script and nothing to fetch."""

from __future__ import annotations

import html
import time
from collections.abc import Iterable, Sequence

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d5dae0;--paper:#fff;--accent:#0072b2;
--bad:#b54300;--tint:#f4f6f8}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#9aa4ae;--line:#39414a;--paper:#14181c;
--accent:#56b4e9;--bad:#e69f00;--tint:#1c2228}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:68rem;padding:1.25rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:0 0 .25rem}
h2{font-size:1.05rem;margin:2rem 0 .5rem;border-bottom:1px solid var(--line)}
h3,h4{font-size:.95rem;margin:1.25rem 0 .25rem}p{margin:.25rem 0}.soft{color:var(--soft)}
.verdict{font-size:1.1rem;margin:.75rem 0;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{font-weight:600;text-align:left;color:var(--soft)}
th,td{padding:.2rem .75rem .2rem 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}
pre{background:var(--tint);padding:.6rem;overflow-x:auto;font-size:.8rem;line-height:1.4;margin:.4rem 0}
.wide{overflow-x:auto}figure{margin:.75rem 0}figcaption{font-size:.85rem;color:var(--soft)}
svg{width:100%;height:auto;display:block}
svg text{font:11px system-ui,sans-serif;fill:var(--soft)}
.axis{stroke:var(--line);stroke-width:1}.curve{stroke:var(--accent);stroke-width:1.5;fill:none}
.dot{fill:var(--accent)}
.band{fill:var(--accent);opacity:.18}.mark{stroke:var(--bad);stroke-width:1;stroke-dasharray:3 3}
.tag{border:1px solid currentColor;border-radius:3px;padding:0 .35rem;font-size:.8rem}
.bad{color:var(--bad)}
@media print{body{max-width:none}}
"""


class Html(str):
    """Text that is markup already. Everything else is escaped where it is put into a page."""

    __slots__ = ()


def safe(value: object) -> Html:
    """The value as text of a page. Control characters are shown, not sent on."""
    if isinstance(value, Html):
        return value
    shown = "".join(c if c >= " " or c in "\n\t" else f"\\x{ord(c):02x}" for c in str(value))
    return Html(html.escape(shown, quote=True))


def joined(parts: Iterable[object]) -> Html:
    return Html("\n".join(safe(part) for part in parts))


def tag(name: str, *inside: object, kind: str = "") -> Html:
    """An element of a fixed name. `kind` is its CSS class."""
    attribute = f' class="{safe(kind)}"' if kind else ""
    if name == "pre" or kind == "wide":
        attribute += ' tabindex="0"'  # what scrolls must be reachable without a mouse
    return Html(f"<{name}{attribute}>{''.join(safe(one) for one in inside)}</{name}>")


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    top = Html("".join(tag("th", head) for head in heads))
    body = Html("".join(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    return tag("div", tag("table", tag("thead", tag("tr", top)), tag("tbody", body)), kind="wide")


def page(title: str, *sections: object) -> str:
    """A whole file. The policy forbids scripts and everything from elsewhere, whatever slipped through."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{safe(title)}</title><style>{_STYLE}</style></head>\n<body><main>{joined(sections)}</main></body></html>\n"
    )


def moment(at_ns: int) -> str:
    """A point in time in UTC, since the reader may be anywhere."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ns / 1e9)) if at_ns else "–"


def span(seconds: float | None) -> str:
    """A duration as a person says it."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
