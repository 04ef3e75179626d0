"""A real browser on a live stack. Without Chromium or the page these tests are skipped; in CI they fail."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from torchloom.api.page import is_built

sys.path.append(str(Path(__file__).parents[1] / "e2e"))
from stack import HANG_S, Stack

ROOT = Path(__file__).parents[2]
AXE = ROOT / "src" / "torchloom" / "web" / "node_modules" / "axe-core" / "axe.min.js"
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
expect.set_options(timeout=HANG_S * 1000)


def missing() -> str:
    if shutil.which("chromium") is None:
        return "chromium is not installed (apt-get install chromium)"
    if not is_built() or not AXE.is_file():
        return "the page is not built (make setup, with Node 20 or newer)"
    return ""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: its event loop in this process would break later asyncio tests."""
    why = missing()
    if why and os.environ.get("CI") == "true":
        pytest.fail(f"{why}, and in CI the page must be tested")
    if why:
        pytest.skip(why)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def stack(browser: Browser) -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="loom-page-") as root:
        made = Stack(Path(root) / "home")
        made.up()
        try:
            yield made
        finally:
            made.end()


class Looker:
    """A browser's own session, and everything it complained about."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))

    def _heard(self, message: object) -> None:
        text = getattr(message, "text", "")
        # A service that is restarted is refused connections, and a session that ends is told so.
        expected = ("ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "Failed to load resource")
        if getattr(message, "type", "") == "error" and not any(word in text for word in expected):
            self.complaints.append(text)

    def open(self, stack: Stack, *args: str, token: str = "") -> str:
        """Follow a link of `loom open`; the link."""
        env = dict(stack.env)
        if token:
            stack.env["LOOM_TOKEN"] = token
        try:
            link: str = json.loads(stack.loom("open", *args, "--json").stdout)["link"]
        finally:
            stack.env.clear()
            stack.env.update(env)
        self.page.goto(link)
        return link

    def go(self, place: str) -> None:
        self.page.evaluate("place => { location.hash = place }", place)

    def axe(self) -> list[str]:
        """What is hard or impossible to use without eyes, mouse or colours, in light and in dark."""
        found = []
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            self.page.evaluate(AXE.read_text())
            result = self.page.evaluate("() => axe.run({resultTypes: ['violations']})")
            for one in result["violations"]:
                places = ", ".join(node["html"][:160] for node in one["nodes"][:3])
                found.append(f"{scheme}: {one['id']} ({one['impact']}): {places}")
        self.page.emulate_media(color_scheme="light")
        return found


@pytest.fixture
def looker(browser: Browser) -> Iterator[Looker]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(HANG_S * 1000)  # a busy machine may not draw for a while
    made = Looker(context)
    yield made
    context.close()
    assert not made.complaints, made.complaints
