"""A stand-in for SuperBench's `sb`: takes the arguments of `sb exec` and writes what that writes.

The layout (`benchmarks/NAME/rank0/results.json`, a list with `name`, `return_code`, `result`, `reduce_op`) is
that of SuperBench's executor and result modules. SuperBench itself cannot be installed here.
"""

from __future__ import annotations

import sys
from pathlib import Path

SCRIPT = """#!{python}
# In the place of: from superbench.cli.sb import main
import argparse, json, os, pathlib, subprocess, sys, time
mode = pathlib.Path(__file__).with_name("mode").read_text()
parser = argparse.ArgumentParser()
parser.add_argument("verb", choices=["exec"])
parser.add_argument("--config-file", required=True)
parser.add_argument("--output-dir", required=True)
given = parser.parse_args()
config = json.loads(pathlib.Path(given.config_file).read_text())["superbench"]
device = os.environ["CUDA_VISIBLE_DEVICES"]
assert "," not in device and "LOOM_TOKEN" not in os.environ, "the environment of one device"
if mode == "hangs":
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", given.output_dir])
    time.sleep(600)
for name, benchmark in config["benchmarks"].items():
    code = dict(missing=31, broken=32).get(mode, 0)
    result = dict(return_code=[code]) if code else dict(return_code=[0], rate=[1000.0 + len(device)])
    made = dict(name=name, type="micro", run_count=1, return_code=code, start_time="", end_time="")
    made |= dict(result=result, reduce_op={{metric: None for metric in result}})
    out = pathlib.Path(given.output_dir) / "benchmarks" / name / "rank0"
    out.mkdir(parents=True)
    (out / "results.json").write_text(json.dumps([made, None], indent=2))
sys.exit(1 if mode == "crashes" else 0)
"""


def install(directory: Path, mode: str) -> Path:
    """`sb` in a directory for PATH; `mode`: runs, missing, broken, hangs or crashes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mode").write_text(mode)
    path = directory / "sb"
    path.write_text(SCRIPT.format(python=sys.executable))
    path.chmod(0o755)
    return path
