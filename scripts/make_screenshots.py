"""Takes the pictures of the page in docs/pictures from a live stack with real workers and real faults.

    python scripts/make_screenshots.py [DIR]

Needs Chromium and the built page. A job trains on four ranks; one of them is killed and recovered, the
learning rate is changed, and at the end one rank hangs. Every page is taken in light and dark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
LOOM = Path(sys.executable).with_name("loom")
SCRIPT = ROOT / "src" / "torchloom" / "examples" / "char_gpt.py"
ARGS = (str(SCRIPT), "--steps", "3000", "--sleep", "0.05", "--checkpoint-every", "100")
JOB, OTHER = "char-gpt-large", "vision-sweep-17"
WIDE, PHONE = (1280, 860), (390, 844)


class Stage:
    def __init__(self, home: Path) -> None:
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        self.env |= {"LOOM_HOME": str(home)}

    def loom(self, *args: str) -> str:
        done = subprocess.run([LOOM, *args], env=self.env, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"loom {' '.join(args)}: {done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *args: str) -> Any:
        return json.loads(self.loom(*args, "--json"))

    def wait(self, condition: Callable[[], Any], what: str, within_s: float = 900.0) -> Any:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(0.5)
        sys.exit(f"not within {within_s:g} s: {what}")

    def incident(self, kind: str, is_open: bool) -> str:
        found = self.json("incidents", JOB)
        return next((one["id"] for one in found if kind in one["kind"] and one["open"] is is_open), "")

    def reach(self, step: int) -> None:
        self.wait(lambda: self.json("status", JOB)["step"] >= step, f"step {step}")


def shoot(page: Page, out: Path, name: str, place: str, *, phone: bool = False, height: int = 0) -> None:
    """One page in light and dark, cut at `height`."""
    for scheme in ("light", "dark"):
        width, tall = PHONE if phone else WIDE
        page.set_viewport_size({"width": width, "height": height or tall})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.evaluate("place => { location.hash = place }", place)
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(3000)  # curves are read every two seconds
        page.screenshot(path=out / f"{name}-{scheme}.png")
        print(f"{name}-{scheme}.png")


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="loom-shots-") as root, sync_playwright() as playwright:
        stage = Stage(Path(root) / "home")
        stage.loom("up", "--port", "0")
        try:
            take(stage, playwright.chromium.launch(executable_path=shutil.which("chromium"),
                                                   args=["--no-sandbox"]).new_page(), out)  # fmt: skip
        finally:
            stage.loom("down", "--stop-jobs")
    return 0


def take(stage: Stage, page: Page, out: Path) -> None:
    stage.loom("submit", "--nproc-per-node", "4", "--name", JOB, "--label", "team=language", *ARGS)
    stage.loom("submit", "--nproc-per-node", "2", "--name", OTHER, "--label", "team=vision", *ARGS)
    stage.reach(200)
    os.kill(stage.json("status", JOB)["workers"][2]["pid"], signal.SIGKILL)
    stage.reach(240)
    crash = stage.wait(lambda: stage.incident("crash", is_open=False), "the recovery")
    stage.loom("set", JOB, "lr=0.004", "--why", "the loss is flat")
    stage.reach(400)
    page.goto(stage.json("open")["link"])
    shoot(page, out, "jobs", "/")
    shoot(page, out, "job", f"/job/{JOB}", height=1300)
    shoot(page, out, "steer", f"/job/{JOB}/steer")
    shoot(page, out, "logs", f"/job/{JOB}/logs")
    shoot(page, out, "incident", f"/incident/{crash}")
    shoot(page, out, "incident-phone", f"/incident/{crash}", phone=True)
    stage.loom("inject", JOB, "hang", "--rank", "2")
    hang = stage.wait(lambda: stage.incident("hang", is_open=True), "the hang")
    time.sleep(8)  # stacks of all ranks are gathered
    shoot(page, out, "hang", f"/incident/{hang}", height=1240)
    shoot(page, out, "stalled", f"/job/{JOB}")


if __name__ == "__main__":
    sys.exit(main())
