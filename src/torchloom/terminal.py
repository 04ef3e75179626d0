"""Control characters made visible: what a script or an API text says must not steer a person's terminal.

Clearing the screen, setting the title, writing into the clipboard (OSC 52) or turning the direction of text
are all done with characters that nobody sees. Each becomes a sign that shows it. Line ends and tabs stay.
"""

from __future__ import annotations

import re
from typing import Any

in_use = False
"""Set by the command line when a person looks at what it prints; `--raw` and LOOM_RAW=1 leave it off."""

_SHOWN: dict[int, str] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "␡",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F)},
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
_HIDDEN = re.compile("[" + "".join(re.escape(chr(code)) for code in _SHOWN) + "]")


def visible(text: str) -> str:
    """The same text, in which every control character can be seen and does nothing."""
    return text.translate(_SHOWN) if _HIDDEN.search(text) else text


def all_visible(value: Any, keep_text: bool = False) -> Any:
    """The same for every string in an answer of the API, names included. `keep_text` leaves logs alone."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, list):
        return [all_visible(one, keep_text) for one in value]
    if isinstance(value, dict):
        return {visible(name): _field(name, one, keep_text) for name, one in value.items()}
    return value


def _field(name: str, value: Any, keep_text: bool) -> Any:
    """The text of a log holds progress bars and colours: `cli/show/folding.py` shows what they come to."""
    return value if keep_text and name == "text" and isinstance(value, str) else all_visible(value, keep_text)
