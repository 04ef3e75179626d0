"""Curves over time and the picture rank × time, as SVG."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torchloom.report.markup import Html, safe

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900.0, 180.0, 64.0, 20.0, 8.0
_SHADES = ("#f0e442", "#e69f00", "#d55e00")
"""From ordinary to slow; the number stands in the tooltip of each cell."""


def curve(
    name: str,
    at_s: Sequence[float],
    mean: Sequence[float | None],
    low: Sequence[float | None],
    high: Sequence[float | None],
    marks: Sequence[tuple[float, str]] = (),
) -> Html:
    """Mean with the band from lowest to highest; each mark is a moment with its reason."""
    known = [v for row in (low, high, mean) for v in row if v is not None]
    if not known or len(at_s) < 2:
        return Html(f"<p class='soft'>{safe(name)}: too few values for a curve.</p>")
    first, last = at_s[0], at_s[-1]
    floor, top = min(known), max(known)
    if top - floor < 1e-12 * max(1.0, abs(top)):
        floor, top = floor - 0.5, top + 0.5

    def x(at: float) -> float:
        return LEFT + (at - first) / ((last - first) or 1.0) * (WIDTH - LEFT - 8)

    def y(value: float) -> float:
        return TOP + (top - value) / (top - floor) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{safe(name)} over time">']
    for value in (floor, (floor + top) / 2, top):
        parts.append(
            f'<line class="axis" x1="{LEFT:g}" x2="{WIDTH - 8:g}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
            f'<text x="{LEFT - 6:g}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )
    for at, anchor in ((first, "start"), (last, "end")):
        clock = time.strftime("%H:%M:%S", time.gmtime(at))
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 5:g}" text-anchor="{anchor}">{clock}</text>')
    for piece in _pieces(at_s, low, high):
        there = " ".join(f"{x(at):.1f},{y(up):.1f}" for at, _, up in piece)
        back = " ".join(f"{x(at):.1f},{y(down):.1f}" for at, down, _ in reversed(piece))
        parts.append(f'<polygon class="band" points="{there} {back}"/>')
    for piece in _pieces(at_s, mean, mean):
        if len(piece) == 1:
            parts.append(f'<circle class="dot" cx="{x(piece[0][0]):.1f}" cy="{y(piece[0][1]):.1f}" r="2"/>')
        parts.append(
            '<polyline class="curve" points="'
            + " ".join(f"{x(a):.1f},{y(v):.1f}" for a, v, _ in piece)
            + '"/>'
        )
    for at, why in marks:
        if first <= at <= last:
            parts.append(
                f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{TOP:g}" y2="{HEIGHT - BOTTOM:g}">'
                f"<title>{safe(why)}</title></line>"
            )
    return Html("".join(parts) + "</svg>")


def ranks_over_time(
    at_s: Sequence[float], rows: Sequence[Sequence[float | None]], ranks_per_row: int, unit: str
) -> Html:
    """One line of cells per rank (or group of ranks): the darker, the more above the median of all."""
    known = sorted(v for row in rows for v in row if v is not None)
    if not known or not at_s:
        return Html("<p class='soft'>No step times of ranks were recorded.</p>")
    usual = known[len(known) // 2] or 1e-9
    tall = max(3.0, min(16.0, 480.0 / len(rows)))
    wide = (WIDTH - LEFT) / max(1, len(at_s))
    height = tall * len(rows) + BOTTOM
    parts = [f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="ranks over time">']
    for number, row in enumerate(rows):
        first = number * ranks_per_row
        label = f"{first}" if ranks_per_row == 1 else f"{first}–{first + ranks_per_row - 1}"
        if number % max(1, round(14 / tall)) == 0:
            parts.append(
                f'<text x="{LEFT - 6:g}" y="{(number + 0.75) * tall:.1f}" text-anchor="end">{label}</text>'
            )
        for place, value in enumerate(row):
            if value is None:
                continue
            ratio = value / usual
            shade = _SHADES[min(2, int((ratio - 1.15) / 0.35))] if ratio >= 1.15 else "#56b4e9"
            parts.append(
                f'<rect x="{LEFT + place * wide:.1f}" y="{number * tall:.1f}" width="{max(wide, 0.8):.2f}" '
                f'height="{max(tall - 1, 2):.1f}" fill="{shade}">'
                f"<title>rank {label}: {value * 1e3:.3g} {unit}, {ratio:.2f} × the median</title></rect>"
            )
    for at, edge, anchor in ((at_s[0], LEFT, "start"), (at_s[-1], WIDTH, "end")):
        clock = time.strftime("%H:%M:%S", time.gmtime(at))
        parts.append(f'<text x="{edge:g}" y="{height - 5:g}" text-anchor="{anchor}">{clock}</text>')
    return Html("".join(parts) + "</svg>")


def _pieces(
    at_s: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]
) -> list[list[tuple[float, float, float]]]:
    """Runs of known values: a gap in the data is a gap in the picture."""
    made: list[list[tuple[float, float, float]]] = [[]]
    for at, down, up in zip(at_s, low, high, strict=True):
        if down is None or up is None:
            made.append([])
        else:
            made[-1].append((at, down, up))
    return [piece for piece in made if piece]
