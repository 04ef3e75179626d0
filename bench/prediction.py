"""How good the prediction of device failures is, on simulated fleets that its weights were not fitted to.

    python bench/prediction.py [--devices 800] [--json] [--svg FILE]    the weights of core/devices/hazard.py
    python bench/prediction.py --fit                                    fit weights, and evaluate those

A fleet is simulated by chaos/device_lives.py: what is counted on each device, and when it fails. Every device
is judged once a day; a hit is a failure within the next 24 h. The weights were fitted to the fleets of
FIT_SEEDS; the figures are of other seeds, and of fleets of other kinds. These are simulations: no figure here
says how good the prediction is on real GPUs.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from torchloom.chaos.device_lives import FleetKind, Observed, observations
from torchloom.core.devices import hazard

FIT_SEEDS = (1, 2, 3, 4)
HELD_OUT_SEEDS = (101, 102, 103)
THRESHOLDS = (0.05, 0.1, 0.2, 0.5)
USUAL = FleetKind()
OTHERS = {
    "as fitted": USUAL,
    "healthier (a quarter of the failures)": replace(USUAL, degrades_a_day=0.001, sudden_a_day=0.0002),
    "noisier (three times the look-alikes)": replace(USUAL, noise=3.0),
    "faster (degrades within 1.5 days)": replace(USUAL, degrading_days=1.5),
    "mostly silent (half without a sign)": replace(USUAL, kinds=(0.2, 0.15, 0.15, 0.5)),
}
BINS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)

Weights = tuple[float, dict[str, float]]


def simulated(kind: FleetKind, seeds: tuple[int, ...]) -> list[Observed]:
    return [one for seed in seeds for one in observations(kind, seed)]


def probability(weights: Weights, features: dict[str, float]) -> float:
    bias, each = weights
    return 1 / (1 + math.exp(-(bias + sum(each[name] * value for name, value in features.items()))))


def fit(data: list[Observed], rounds: int = 30) -> Weights:
    """Logistic regression by Newton's method, with a small penalty; weights below zero are set to zero."""
    import torch

    names = list(hazard.WEIGHTS)
    x = torch.tensor([[1.0, *(one.features[n] for n in names)] for one in data], dtype=torch.float64)
    y = torch.tensor([float(one.failed) for one in data], dtype=torch.float64)
    w = torch.zeros(x.shape[1], dtype=torch.float64)
    penalty = torch.eye(x.shape[1], dtype=torch.float64)
    penalty[0, 0] = 0.0
    for _ in range(rounds):
        p = torch.sigmoid(x @ w)
        gradient = x.T @ (p - y) + penalty @ w
        curvature = (x * (p * (1 - p))[:, None]).T @ x + penalty
        w = w - torch.linalg.solve(curvature, gradient)
        w[1:] = w[1:].clamp(min=0.0)
    each = {name: round(float(value), 2) for name, value in zip(names, w[1:], strict=True)}
    return round(float(w[0]), 2), each


def evaluate(weights: Weights, data: list[Observed]) -> dict[str, object]:
    scored = sorted(((probability(weights, one.features), one) for one in data), key=lambda pair: pair[0])
    failed = sum(one.failed for _, one in scored)
    rate = failed / len(scored)
    brier = sum((p - one.failed) ** 2 for p, one in scored) / len(scored)
    causes: dict[str, list[int]] = {}
    for p, one in scored:
        if one.failed:
            causes.setdefault(one.cause, [0, 0])[0] += p >= 0.1
            causes[one.cause][1] += 1
    return {
        "judged": len(scored),
        "failures": failed,
        "auc": auc(scored, failed),
        "best_auc": best_auc(data),
        "brier": brier,
        "brier_of_the_rate": rate * (1 - rate),
        "at": {str(t): _at(scored, failed, t) for t in THRESHOLDS},
        "found_at_0.1_by_cause": {name: f"{hit} of {n}" for name, (hit, n) in sorted(causes.items())},
        "calibration": _calibration(scored),
    }


def auc(scored: list[tuple[float, Observed]], failed: int) -> float:
    """The chance that a device that fails was ranked above one that does not; ties count half."""
    total, at = 0.0, 0
    while at < len(scored):
        end = at
        while end < len(scored) and scored[end][0] == scored[at][0]:
            end += 1
        middle = (at + end + 1) / 2
        total += middle * sum(one.failed for _, one in scored[at:end])
        at = end
    return (total - failed * (failed + 1) / 2) / (failed * (len(scored) - failed))


def best_auc(data: list[Observed]) -> float:
    """The AUC of an oracle that sees through the simulation: it knows of every device whether it degrades and
    when it will fail of that. About a failure that comes suddenly, without a sign, or of a device that begins
    to degrade only after it was judged, nothing can be known, so it guesses."""
    failures = [one for one in data if one.failed]
    others = [one for one in data if not one.failed]
    known = sum(one.degrading for one in failures) / len(failures)
    excluded = sum(one.degrading for one in others) / len(others)  # it knows that these do not fail yet
    return known + (1 - known) * (excluded + (1 - excluded) / 2)


def _at(scored: list[tuple[float, Observed]], failed: int, threshold: float) -> dict[str, float]:
    alarms = [one for p, one in scored if p >= threshold]
    hits = sum(one.failed for one in alarms)
    return {
        "alarms": len(alarms),
        "precision": hits / len(alarms) if alarms else 0.0,
        "recall": hits / failed if failed else 0.0,
    }


def _calibration(scored: list[tuple[float, Observed]]) -> list[tuple[float, float, int]]:
    """Mean of what was predicted, share that failed, and how many, for each bin."""
    found = []
    for low, high in pairwise(BINS):
        inside = [(p, one.failed) for p, one in scored if low <= p < high]
        if len(inside) >= 20:
            predicted = sum(p for p, _ in inside) / len(inside)
            found.append((predicted, sum(f for _, f in inside) / len(inside), len(inside)))
    return found


def svg(results: dict[str, dict[str, object]]) -> str:
    """Predicted against observed, both on a logarithmic scale from 0.1 % to 100 %."""
    size, edge, colours = 320, 48, ("#0b6e4f", "#b4472e", "#2b59c3", "#8a5a00", "#6b3fa0")

    def place(p: float) -> float:
        return edge + size * (math.log10(max(p, 1e-3)) + 3) / 3

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size + 2 * edge} {size + 2 * edge + 96}" '
        'font-family="sans-serif" font-size="11" role="img" aria-label="Calibration on held-out fleets">',
        f'<rect width="100%" height="100%" fill="#fff"/><rect x="{edge}" y="{edge}" width="{size}" '
        f'height="{size}" fill="none" stroke="#999"/>',
        f'<line x1="{edge}" y1="{edge + size}" x2="{edge + size}" y2="{edge}" stroke="#999" '
        'stroke-dasharray="4"/>',
    ]
    for p, text in ((0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %")):
        lines.append(f'<text x="{place(p):.0f}" y="{edge + size + 16}" text-anchor="middle">{text}</text>')
        y = size + 2 * edge - place(p) + 4
        lines.append(f'<text x="{edge - 6}" y="{y:.0f}" text-anchor="end">{text}</text>')
    middle = edge + size / 2
    lines.append(f'<text x="{middle}" y="{edge + size + 34}" text-anchor="middle">predicted for 24 h</text>')
    lines.append(f'<text x="{edge}" y="{edge - 12}">observed, held-out simulated fleets</text>')
    for at, (name, found) in enumerate(results.items()):
        points = [
            (place(p), size + 2 * edge - place(o))
            for p, o, _ in found["calibration"]  # type: ignore[attr-defined]
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        colour = colours[at % len(colours)]
        lines.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        y = edge + size + 54 + 15 * at
        lines.append(f'<text x="{edge}" y="{y}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>\n"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=USUAL.devices)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    weights: Weights = (hazard.BIAS, hazard.WEIGHTS)
    if options.fit:
        data = simulated(replace(USUAL, devices=options.devices), FIT_SEEDS)
        weights = fit(data)
        print(f"fitted to seeds {FIT_SEEDS}, {len(data)} device-days: bias {weights[0]:.2f}, {weights[1]}")
    results = {
        name: evaluate(weights, simulated(replace(kind, devices=options.devices), HELD_OUT_SEEDS))
        for name, kind in OTHERS.items()
    }
    if options.svg:
        options.svg.write_text(svg(results))
    if options.json:
        print(json.dumps({"seeds": HELD_OUT_SEEDS, "results": results}))
        return
    print(f"held-out seeds {HELD_OUT_SEEDS}, {options.devices} devices for {USUAL.days} days each")
    for name, found in results.items():
        _show(name, found)


def _show(name: str, found: dict[str, object]) -> None:
    print(
        f"\n{name}: {found['judged']} device-days, {found['failures']} failures within a day, "
        f"AUC {found['auc']:.3f} (best possible {found['best_auc']:.3f}), Brier {found['brier']:.5f} "
        f"(always saying the rate: {found['brier_of_the_rate']:.5f})"
    )
    for threshold, one in found["at"].items():  # type: ignore[attr-defined]
        print(
            f"  p >= {threshold:<4}  {one['alarms']:>5} alarms   precision {one['precision']:.2f}   "
            f"recall {one['recall']:.2f}"
        )
    print(f"  found at 0.1, by cause: {found['found_at_0.1_by_cause']}")
    said = ", ".join(f"{p:.3f}->{o:.3f} (n {n})" for p, o, n in found["calibration"])  # type: ignore[attr-defined]
    print(f"  predicted->observed: {said}")


if __name__ == "__main__":
    main()
