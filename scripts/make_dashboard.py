"""Writes deploy/grafana/torchloom.json, a dashboard of torchloom's metrics for import into Grafana.

python scripts/make_dashboard.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "torchloom.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_JOB = '{job=~"$job"}'

PANELS: tuple[tuple[str, str, str, str, int], ...] = (
    # title, expression, legend, unit, width of 24
    ("Open incidents", "loom_incidents_open", "", "short", 4),
    ("Jobs running", 'loom_jobs{state="running"}', "", "short", 4),
    ("Jobs failed", 'loom_jobs{state="failed"}', "", "short", 4),
    ("Nodes unreachable", 'loom_nodes{state="unreachable"}', "", "short", 4),
    ("Places taken", "sum(loom_node_workers) / sum(loom_node_slots)", "", "percentunit", 4),
    ("A service leads", "max(loom_weaver_active)", "", "short", 4),
    ("Pace", f"loom_job_steps_per_second{OF_JOB}", "{{job}}", "short", 12),
    ("Goodput", f"loom_job_goodput_ratio{OF_JOB}", "{{job}}", "percentunit", 12),
    ("Step", f"loom_job_step{OF_JOB}", "{{job}}", "short", 12),
    ("Loss", f"loom_job_loss{OF_JOB}", "{{job}}", "short", 12),
    ("Restarts an hour", f"increase(loom_job_restarts_total{OF_JOB}[1h])", "{{job}}", "short", 12),
    ("Incidents an hour", f"increase(loom_job_incidents_total{OF_JOB}[1h])", "{{job}}", "short", 12),
    ("Step time, slowest ranks", f"topk(8, loom_worker_step_seconds{OF_JOB})", "{{job}} {{rank}}", "s", 12),
    (
        "Speed lost to a rank",
        f"topk(8, loom_worker_lost_ratio{OF_JOB})",
        "{{job}} {{rank}}",
        "percentunit",
        12,
    ),
    ("Time since progress", f"topk(8, loom_worker_idle_seconds{OF_JOB})", "{{job}} {{rank}}", "s", 12),
    ("Time left", f"loom_job_eta_seconds{OF_JOB}", "{{job}}", "s", 12),
)


def dashboard() -> dict[str, Any]:
    panels, x, y = [], 0, 0
    for number, (title, expression, legend, unit, width) in enumerate(PANELS, 1):
        height = 4 if width < 12 else 8
        if x + width > 24:
            x, y = 0, y + (4 if y == 0 else 8)
        panels.append(
            {
                "id": number,
                "title": title,
                "type": "stat" if width < 12 else "timeseries",
                "datasource": SOURCE,
                "gridPos": {"x": x, "y": y, "w": width, "h": height},
                "targets": [{"refId": "A", "expr": expression, "legendFormat": legend, "datasource": SOURCE}],
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            }
        )
        x += width
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "datasource": SOURCE,
            "query": "label_values(loom_job_workers, job)",
            "multi": True,
            "includeAll": True,
            "refresh": 2,
            "current": {"text": "All", "value": "$__all"},
        },
    ]
    return {
        "uid": "torchloom",
        "title": "torchloom",
        "tags": ["torchloom"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def main() -> int:
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" in sys.argv:
        return int(not OUT.exists() or OUT.read_text() != text)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
