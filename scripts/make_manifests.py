"""Makes deploy/kubernetes/torchloom.yaml from the chart, for those without helm. A test compares the two.

Secrets are yours there (auth.existingSecret, tls.existingSecret): docs/operations.md says how to make them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "deploy/kubernetes/torchloom.yaml"
SET = "auth.existingSecret=torchloom-auth,tls.existingSecret=torchloom-tls"
HEAD = "# Made from deploy/helm/torchloom by scripts/make_manifests.py; change the chart, not this file.\n"


def rendered() -> str:
    helm = Path(sys.executable).parent / "helm"
    command = [str(helm), "template", "torchloom", str(ROOT / "deploy/helm/torchloom")]
    command += ["--namespace", "default", "--set", SET]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    of_helm = ("managed-by", "helm.sh/chart")
    lines = [line.rstrip() for line in done.stdout.splitlines() if not any(key in line for key in of_helm)]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUT.write_text(rendered())
