"""A report holds what the API said, as text, and nothing that a browser would run or fetch."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from torchloom.report import markup
from torchloom.report.charts import curve, ranks_over_time
from torchloom.report.incident import incident_page
from torchloom.report.markup import safe, span

HOSTILE = "<script>alert(1)</script>\x1b]52;c;x\x07\"'&"


class Elements(HTMLParser):
    """Names of all elements and attributes of a file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def incident(**changes: Any) -> Any:
    moments = ("fault", "first_sign", "detected", "decided", "stopped", "spawned", "restored", "first_step")
    rank = {"rank": 1, "node": HOSTILE, "state": "T", "phase": "step", "steps": 7, "doing": HOSTILE}
    rank |= {
        "location": HOSTILE,
        "stack": [HOSTILE],
        "gil": "",
        "collectives": [HOSTILE],
        "log_tail": [HOSTILE],
    }
    finding = {"ranks": [1], "node": "", "confidence": 0.9, "certain": False, "certainty": HOSTILE}
    return {
        "id": "j.1", "job": HOSTILE, "generation": 1, "kind": "hang", "verdict": HOSTILE, "decision": HOSTILE,
        "open": False, "resolution": HOSTILE, "lost_steps": 3, "recovery_s": 0.5, "finding": finding,
        "timeline": {f"{name}_ns": 10**18 + i * 10**8 for i, name in enumerate(moments)},
        "evidence": [rank], "exits": [], **changes,
    }  # fmt: skip


def test_whatever_a_script_or_a_person_wrote_stays_text() -> None:
    page = incident_page(incident())
    found = Elements(page)
    assert not found.elements & {"script", "img", "iframe", "link", "object", "embed", "form"}
    assert not {name for name in found.attributes if name.startswith("on") or name in ("src", "href")}
    assert found.text.count("<script>alert(1)</script>") >= 8
    assert "\x1b" not in page and "\x07" not in page and r"\x1b" in page


def test_the_verdict_comes_first_and_the_cost_is_said() -> None:
    text = Elements(incident_page(incident(verdict="rank 1 is stopped"))).text
    assert text.index("rank 1 is stopped") < text.index("3 steps repeated or lost, recovered in 0.5 s")
    assert text.index("3 steps repeated") < text.index("new workers started")
    assert "+ 0.1 s" in text


def test_an_open_incident_and_an_unknown_loss_are_said() -> None:
    text = Elements(incident_page(incident(open=True, lost_steps=None, recovery_s=None))).text
    assert "open" in text and "lost steps unknown" in text and "recovered in" not in text


def test_a_gap_in_the_data_is_a_gap_in_the_curve() -> None:
    drawn = curve("loss", [0, 1, 2, 3, 4], [1, 2, None, 2, 1], [1, 1, None, 1, 1], [2, 3, None, 3, 2])
    assert len(re.findall("<polyline", drawn)) == 2
    assert "too few values" in curve("loss", [0], [1], [1], [1])
    assert "too few values" in curve("loss", [0, 1], [None] * 2, [None] * 2, [None] * 2)


def test_a_constant_is_a_line_and_marks_outside_are_left_out() -> None:
    drawn = curve("lr", [0, 1], [0.1, 0.1], [0.1, 0.1], [0.1, 0.1], [(0.5, "inside"), (9, "outside")])
    assert "inside" in drawn and "outside" not in drawn and "nan" not in drawn


def test_a_slow_rank_has_another_colour_than_the_others() -> None:
    drawn = ranks_over_time([0, 1], [[0.1, 0.1], [0.1, 0.1], [0.2, None]], 1, "ms per step")
    assert len(re.findall("<rect", drawn)) == 5
    assert len(re.findall("#d55e00", drawn)) == 1 and "2.00 × the median" in drawn


def test_spans_read_as_a_person_says_them() -> None:
    assert [span(s) for s in (None, 0.1234, 59.9, 61, 7260)] == [
        "–",
        "0.123 s",
        "59.9 s",
        "1 min 1 s",
        "2 h 1 min",
    ]
    assert safe(3) == "3"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "soft", "bad"])
def test_every_text_stands_out_from_the_paper(scheme: str, text: str) -> None:
    """At least 4.5 to 1, as WCAG asks: an incident that is open or blames a rank has words in `bad`."""
    blocks = re.findall(r":root\{(.*?)\}", markup._STYLE, re.DOTALL)
    colours = dict(re.findall(r"--(\w+):(#\w+)", blocks[scheme == "dark"]))
    lights = sorted(map(luminance, (colours[text], colours["paper"])))
    assert (lights[1] + 0.05) / (lights[0] + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Of #rgb or #rrggbb, as WCAG computes it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
