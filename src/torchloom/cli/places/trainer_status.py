"""Reports a job's progress to Kubeflow Trainer, which shows it in the TrainJob's status.

Trainer injects an address, an authority and a token into the pods of a TrainJob (feature TrainJobStatus).
Without them nothing is sent. A report that fails is not repeated: the next one has newer numbers.
"""

from __future__ import annotations

import json
import math
import ssl
import sys
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.client.schema import JobDetail

PREFIX = "KUBEFLOW_TRAINER_STATUS_"
ANSWER_WITHIN_S = 5.0
MOST_TEXT = 64


class TrainerStatus:
    def __init__(self, url: str, authority: str, token_file: str) -> None:
        self._url, self._authority, self._token_file = url, authority, token_file
        self._failed = False

    @classmethod
    def of(cls, env: Mapping[str, str]) -> TrainerStatus | None:
        url, authority, token = (env.get(PREFIX + name, "") for name in ("URL", "CA_CERT", "TOKEN"))
        return cls(url, authority, token) if url and token else None

    def send(self, view: JobDetail) -> None:
        """Send the progress of the job; say once if that is impossible."""
        body = json.dumps({"trainerStatus": status_of(view, datetime.now(UTC))}).encode()
        try:
            token = Path(self._token_file).read_text().strip()  # read again: it is renewed
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
            context = ssl.create_default_context(cafile=self._authority or None)
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S, context=context):
                self._failed = False
        except (OSError, ValueError) as error:
            if not self._failed:
                print(f"loom: Trainer does not take the progress: {error}", file=sys.stderr)
            self._failed = True


def status_of(view: JobDetail, now: datetime) -> dict[str, Any]:
    """`status.trainerStatus` of a TrainJob, within the limits of its schema."""
    found: dict[str, Any] = {"lastUpdatedTime": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
    total, step, eta_s = view["total_steps"], view["step"], view["eta_s"]
    if view["state"] == "completed":
        found["progressPercentage"] = 100
    elif total and step is not None:
        found["progressPercentage"] = max(0, min(99, int(100 * step / total)))
    if eta_s is not None and math.isfinite(eta_s):
        found["estimatedRemainingSeconds"] = max(0, min(2**31 - 1, int(eta_s)))
    values: dict[str, object] = {"step": step, "restarts": view["restarts"], "state": view["state"]}
    found["metrics"] = [
        {"name": name, "value": str(value)[:MOST_TEXT]} for name, value in values.items() if value is not None
    ]
    return found
