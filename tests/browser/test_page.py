"""The page in a real browser on a live stack with real workers."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from pathlib import Path

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, Route, expect
from stack import Stack, wait_until

from conftest import Looker

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = SCRIPTS / "watched.py"
JOB = "watched"
OUTSIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth)
    .map(e => e.outerHTML.slice(0, 200))"""
"""What makes the page wider than its window."""
HOSTILE = "<img src=x onerror=alert(3)>"


def shown_step(page: Page) -> int:
    return int(re.sub(r"\D", "", page.get_by_test_id("step").inner_text()) or "0")


def wait_for_more(page: Page, than: int) -> int:
    """The step on the page, without reading it anew, is beyond this one."""
    try:
        found: int = wait_until(lambda: (step := shown_step(page)) > than and step, f"a step after {than}")
    except (AssertionError, PlaywrightError) as error:
        page.screenshot(path=(picture := Path(tempfile.mkdtemp(prefix="loom-page-")) / "page.png"))
        raise AssertionError(f"{error}\n{picture}\n{page.content()[:20000]}") from error
    return found


@pytest.fixture(scope="module")
def job(stack: Stack) -> str:
    """A job of two ranks, submitted without the page so that each test can stand alone."""
    stack.loom(
        *("submit", "--nproc-per-node", "2", "--name", JOB, "--label", f"team={HOSTILE}"),
        str(SCRIPT),
    )
    wait_until(lambda: stack.status(JOB)["step"] > 5, "it trains")
    return JOB


def test_a_link_signs_in_once_and_leaves_no_code_behind(stack: Stack, looker: Looker) -> None:
    page = looker.page
    page.goto(stack.client().endpoint.url)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert not looker.axe()
    page.get_by_label("Token").fill("not-a-token")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not a valid token")
    link = looker.open(stack)
    expect(page.get_by_role("status")).to_contain_text("Nothing is wrong")
    code = link.rpartition("/")[2]
    assert code not in page.url and code not in page.evaluate("JSON.stringify(history.state) + location.href")
    assert page.evaluate("document.cookie") == "", "no script can read the session"
    page.get_by_role("button", name="sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("used before")


def test_a_job_is_submitted_and_its_steps_grow(stack: Stack, looker: Looker) -> None:
    page = looker.page
    looker.open(stack)
    page.get_by_role("button", name="Submit a job").click()
    page.get_by_label(re.compile("^Script")).fill(str(SCRIPT))
    page.get_by_label("Workers").fill("1")
    page.get_by_label(re.compile("^Name")).fill("by-hand")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", name="by-hand")).to_be_visible()
    expect(page.get_by_text("running", exact=True).first).to_be_visible()
    first = wait_for_more(page, 1)
    wait_for_more(page, first + 5)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("dialog")).to_contain_text("the job is over")
    page.get_by_role("button", name="Stop the job").click()
    expect(page.get_by_text("stopped", exact=True).first).to_be_visible()


def kill_at_once(stack: Stack, pids: list[int]) -> None:
    """None of them can end of another's death, and the agent, which would end the others, sees all dead."""
    agent = stack.part_pid("agent")
    for stopped in (agent, *pids):
        os.kill(stopped, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(agent, signal.SIGCONT)


def test_killed_workers_their_incident_and_recovery_appear(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    step = wait_for_more(page, 5)
    page.evaluate("window.kept = true")
    known = {one["id"] for one in stack.json("incidents", job)}
    kill_at_once(stack, [stack.worker_pid(job, rank) for rank in (1, 0)])
    link = page.get_by_role("link", name="crash").first
    expect(link).to_be_visible()
    expect(page.get_by_text(re.compile("recovered in")).first).to_be_visible()
    wait_for_more(page, step + 5)
    assert page.evaluate("window.kept"), "nothing was loaded again"
    new = next(
        one for one in stack.json("incidents", job) if one["id"] not in known and one["kind"] == "crash"
    )
    looker.go(f"/incident/{new['id']}")
    expect(page.get_by_role("heading", name="crash")).to_be_visible()
    expect(page.get_by_role("status").first).to_contain_text("SIGKILL")
    expect(page.get_by_label("In short")).to_contain_text("rank 0, rank 1")
    expect(page.locator("#exits")).to_contain_text("to blame as well")
    expect(page.get_by_text("first step again")).to_be_visible()
    page.get_by_role("button", name="Step through the decisions").click()
    replay = page.locator("#replay")
    expect(replay).to_contain_text("The replay came to the same decision")
    expect(replay.locator(".step")).to_contain_text("worker-exited")
    expect(replay.locator(".step dl")).to_contain_text("running → recovering")
    expect(replay.locator(".decision").first).to_contain_text("recorded so at the time")
    replay.locator("[aria-current=step]").press("ArrowDown")
    expect(replay.get_by_text(re.compile(r"step \d+ of"))).to_be_visible()
    assert not looker.axe()


def test_a_setting_is_changed_on_every_rank_and_taken_back(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    page.get_by_role("link", name="Steer").click()
    page.get_by_label("New value of lr").fill("0.002")
    page.get_by_label("Why").fill("the loss is flat")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.locator(".diff").first).to_contain_text("0.01 → 0.002")
    page.get_by_role("button", name="Apply on 2 ranks").click()
    expect(page.get_by_test_id("confirmed")).to_contain_text("All 2 ranks have confirmed")
    assert not looker.axe()
    values = stack.client().config(job)["settings"]
    assert next(one for one in values if one["name"] == "lr")["places"][0]["value"] == 0.002
    page.get_by_role("button", name="Back to the script's own").click()
    expect(page.get_by_role("dialog")).to_contain_text("0.002 →")
    page.get_by_role("button", name="Revert").click()
    expect(page.get_by_role("dialog")).to_have_count(0)  # until then nobody can type into what is below it
    expect(page.get_by_label("The change in progress")).to_contain_text("own")
    expect(page.get_by_text("2 ranks have confirmed").first).to_be_visible()
    page.get_by_label("New value of lr").fill("fast")
    page.get_by_role("button", name="Show the difference").click()
    expect(page.get_by_role("alert")).to_contain_text("lr")


def test_pause_and_resume(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert stack.status(job)["paused"]
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    wait_for_more(page, shown_step(page))


def test_a_weaver_that_is_killed_costs_the_page_nothing(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    step = wait_for_more(page, 1)
    page.evaluate("window.kept = true")
    old = stack.kill_part("weaver")
    expect(page.get_by_text("not connected")).to_be_visible()
    expect(page.get_by_text("training is not affected")).to_be_visible()
    stack.wait_part_back("weaver", old)
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    wait_for_more(page, step)
    assert page.evaluate("window.kept"), "the page was not loaded again"


def test_who_may_only_read_sees_no_buttons_that_change(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    token = stack.loom("token", "create", "wall").stdout.strip()
    looker.open(stack, job, token=token)
    wait_for_more(page, 1)
    for place in ("/", f"/job/{job}", f"/job/{job}/steer"):
        looker.go(place)
        expect(page.get_by_text(job).first).to_be_visible()
        for name in ("Pause", "Stop", "Scale", "Checkpoint now", "drain", "Submit a job", "restore"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
        expect(page.get_by_label(re.compile("New value"))).to_have_count(0)
    status = page.evaluate(f"fetch('api/v1/jobs/{job}/pause', {{method: 'POST'}}).then(a => a.status)")
    assert status == 403


def test_hostile_names_and_lines_stay_text(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack)
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    assert not looker.axe()
    looker.go(f"/job/{job}/logs?rank=0")
    expect(page.get_by_text("<script>alert(2)</script>").first).to_be_visible()
    expect(page.locator(".log .a31").first).to_have_text("red")
    assert page.locator("img").count() == 0 and page.locator(".log script").count() == 0
    assert not looker.axe()
    page.get_by_label("Search the whole log").fill("onerror")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("that contain “onerror”")).to_be_visible()
    expect(page.get_by_test_id("lines")).to_contain_text(re.compile(r"^[1-9]\S* lines?"))
    looker.go("/job/%3Cimg%20src%3Dx%20onerror%3Dalert(4)%3E")
    expect(page.get_by_role("alert")).to_be_visible()


def test_a_node_is_drained_and_opened_again(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack)
    nodes = page.locator("#nodes")
    nodes.get_by_role("button", name="drain").click()
    expect(page.get_by_role("dialog")).to_contain_text("No new workers are placed there")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(nodes.get_by_text("drained", exact=True)).to_be_visible()
    # There is no other node: the job keeps training here, and the page says why.
    expect(nodes.get_by_text(re.compile(f"^{job}: .*room"))).to_be_visible()
    assert stack.json("nodes")[0]["drained"].endswith("drained on the page")
    nodes.get_by_role("button", name="open").click()
    page.get_by_role("dialog").get_by_role("button", name="Open").click()
    expect(nodes.get_by_text("ready", exact=True)).to_be_visible()
    expect(nodes.get_by_text(re.compile(f"^{job}: "))).to_have_count(0)


def test_a_device_is_drained_and_returned(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    devices = page.get_by_role("table", name="Devices and their workers")
    devices.get_by_role("button", name=re.compile("^drain ")).first.click()
    # A dry run names the job before anything is done.
    expect(page.get_by_role("dialog").get_by_role("listitem").filter(has_text=job)).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    devices.get_by_role("button", name=re.compile("^return ")).click()
    page.get_by_role("dialog").get_by_role("button", name="Return").click()
    expect(devices.get_by_text("available").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def made_device(number: int, **changed: object) -> dict[str, object]:
    """A device as the API describes it; what these show takes a GPU days to do."""
    made: dict[str, object] = {
        "device": f"GPU-{number}", "kind": "gpu", "name": "A100", "node": "n1", "workers": [], "replicas": [],
        "state": "available", "out": "", "out_at_ns": 0, "health": "ok", "health_why": "", "risk": 0.002,
        "risk_why": "no signs", "at_risk": False, "testing": "", "wants_test": "",
    }  # fmt: skip
    return made | changed


def test_risk_and_tests_of_devices_are_shown_in_words(stack: Stack, looker: Looker) -> None:
    page, asked = looker.page, list[str]()
    devices = [
        made_device(0),
        made_device(1, risk=0.18, at_risk=True, risk_why="214 corrected ECC errors a day"),
        made_device(2, state="testing", testing="policy: it is at risk", out="drained, by policy: 18 %"),
        made_device(3, state="drained", out="drained, by ann", risk=None, risk_why="not enough data: 2 h"),
        made_device(4, wants_test="18 % to fail within a day", risk=0.18, at_risk=True),
    ]
    page.route(re.compile("/devices$"), lambda route: route.fulfill(json={"devices": devices, "workers": []}))

    def accept(route: Route) -> None:
        asked.append(f"{route.request.url.rpartition('/devices/')[2]} {route.request.post_data}")
        route.fulfill(json={})

    page.route(re.compile("/devices/GPU-.*"), accept)
    looker.open(stack)
    table = page.get_by_role("table", name="Devices to look at")

    def row(number: int) -> Locator:
        return table.get_by_role("row").filter(has_text=f"GPU-{number}")

    expect(row(1)).to_contain_text("at risk: 18.0 % within 24 h")
    expect(row(1)).to_contain_text("214 corrected ECC errors a day")
    expect(row(0)).to_have_count(0)  # one without a sign needs no look
    expect(row(2)).to_contain_text("testing")
    expect(row(2)).to_contain_text("requested by policy: it is at risk")
    expect(row(2).get_by_role("button")).to_have_count(0)  # its test decides whether it returns
    expect(row(3)).to_contain_text("not enough data")
    expect(row(4)).to_contain_text("to be tested when no worker uses it")
    assert not looker.axe()
    row(3).get_by_role("button", name="test and return").click()
    page.get_by_role("dialog").get_by_role("button", name="Test").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert asked == ['GPU-3/return {"why":"on the page","test":true}']
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(lambda: not page.evaluate(OUTSIDE), "nothing stands out to the right")


def test_an_earlier_state_is_restored_from_the_catalogue(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    wait_until(lambda: stack.json("checkpoints", job)["checkpoints"], "a checkpoint")
    looker.open(stack, job)
    row = page.locator("#checkpoints tbody tr").last
    row.get_by_role("button", name="restore").click()
    expect(page.get_by_role("dialog")).to_contain_text("All ranks go back to the state of step")
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    done = page.locator("#operations tbody tr").filter(has_text="restore").filter(has_text="applied")
    expect(done.first).to_be_visible()
    wait_for_more(page, 1)


def test_a_million_lines_of_log_scroll_and_are_searched_and_followed(stack: Stack, looker: Looker) -> None:
    page = looker.page
    name = stack.submit(str(SCRIPTS / "talkative.py"), workers=1)
    looker.open(stack, name)
    looker.go(f"/job/{name}/logs?rank=0&whole=1")
    lines = page.get_by_test_id("lines")
    expect(lines).to_have_text(re.compile(r"^1\D0\d\d\D\d{3} lines$"))
    expect(page.get_by_text("following", exact=True)).to_be_visible()
    assert page.locator(".log .row").count() < 200, "only the lines that are seen are drawn"
    expect(page.locator(".log").get_by_text(re.compile(r"^tick \d+$")).last).to_be_visible()
    page.evaluate("document.querySelector('.log').scrollTop = 18 * 500_000")
    expect(page.get_by_text("not following: scrolled up")).to_be_visible()
    expect(page.locator(".log").get_by_text("line 500010", exact=True)).to_be_visible()
    known = lines.inner_text()
    expect(lines).not_to_have_text(known)  # new lines arrive meanwhile …
    expect(page.locator(".log").get_by_text("line 500010", exact=True)).to_be_visible()  # … and move nothing
    page.get_by_role("button", name="to the end").click()
    expect(page.get_by_text("following", exact=True)).to_be_visible()
    page.get_by_label("Search the whole log").fill("line 77777")
    page.get_by_role("button", name="Search").click()
    expect(lines).to_have_text("11 lines")  # itself, and 777770 to 777779
    stack.client().stop(name, {"kill": True})


SCROLL_AS_A_LINE_IS_DRAWN = """() => new Promise((done) => {
  const log = document.querySelector(".log");
  const watch = new MutationObserver(() => {
    watch.disconnect();
    log.scrollTop = 18 * 500;
    done();
  });
  watch.observe(log.querySelector(".sheet"), {attributes: true, attributeFilter: ["style"]});
})"""
"""Between a render and the frame that shows it: the narrowest moment in which a person can scroll."""


def test_who_scrolls_up_while_a_line_arrives_stays_there(stack: Stack, looker: Looker) -> None:
    page = looker.page
    name = stack.submit(str(SCRIPTS / "talkative.py"), workers=1)
    looker.open(stack, name)
    looker.go(f"/job/{name}/logs?rank=0")
    expect(page.locator(".log").get_by_text(re.compile(r"^tick \d+$")).last).to_be_visible()
    lines = page.get_by_test_id("lines")
    for _ in range(3):
        page.evaluate(SCROLL_AS_A_LINE_IS_DRAWN)
        known = lines.inner_text()
        expect(lines).not_to_have_text(known)
        assert page.evaluate("document.querySelector('.log').scrollTop") == 18 * 500
        expect(page.get_by_text("not following: scrolled up")).to_be_visible()
        page.get_by_role("button", name="to the end").click()
        expect(page.get_by_text("following", exact=True)).to_be_visible()
    stack.client().stop(name, {"kill": True})


ODD_CURVES = {
    "metric:just_below_a_power": [0.00099, 0.5, 10.0],
    "metric:rounding": [99999999.99999997, 1e8, 1e8],
    "metric:rounding_error": [1.0, 1.0000000000000002, 1.0],
    "metric:flat": [5.0, 5.0, 5.0000001],
    "metric:huge": [1e-300, 1.0, 1e300],
    "metric:gaps": [None, None, 1.0],
    "metric:negative": [-1e-12, 0.0, 1e-12],
    "metric:loss": [2.0],
}


def odd_series(job: str) -> dict[str, object]:
    """What the API may give, as hard on an axis as numbers can be."""
    made = [
        {"name": name, "width_s": 1.0, "at_s": [1.8e9 + n for n in range(len(values))], "mean": values,
         "low": values, "high": values}
        for name, values in ODD_CURVES.items()
    ]  # fmt: skip
    return {"job": job, "as_of_ns": 0, "names": [], "series": made}


def test_curves_of_any_numbers_are_drawn(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    page.route(re.compile(f"/jobs/{job}/series\\?"), lambda route: route.fulfill(json=odd_series(job)))
    looker.open(stack, job)
    for scale in ("auto", "log", "linear"):
        page.locator("#curves").get_by_role("button", name=scale).click()
        # `gaps` does not change, and a single point is no curve.
        expect(page.locator("#curves .chart")).to_have_count(len(ODD_CURVES) - 2)
        expect(page.locator("#curves canvas")).to_have_count(len(ODD_CURVES) - 2)
    assert page.evaluate("1 + 1") == 2, "the page still answers"


def test_a_job_is_readable_on_a_phone_and_without_a_mouse(stack: Stack, job: str, looker: Looker) -> None:
    page = looker.page
    looker.open(stack, job)
    wait_for_more(page, 1)
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    expect(page.locator(".chart").first).to_be_visible()
    assert not looker.axe()
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(lambda: not page.evaluate(OUTSIDE), "nothing stands out to the right")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement !== document.body")


def points_of(stack: Stack, job: str, name: str) -> int:
    """How many values are known; moments without one are not counted."""
    found = stack.client().series(job, name=[name])["series"]
    return sum(value is not None for one in found for value in one["mean"])


def test_a_report_opens_offline(stack: Stack, job: str, looker: Looker, tmp_path: Path) -> None:
    page, shown = looker.page, tmp_path / "report.html"
    known = {one["id"] for one in stack.json("incidents", job)}
    os.kill(stack.worker_pid(job, 0), signal.SIGKILL)

    def recovered() -> str:
        """The crash of this test; a busy machine has others."""
        crashes = [one for one in stack.json("incidents", job) if one["kind"] == "crash" and not one["open"]]
        return next((one["id"] for one in crashes if one["id"] not in known), "")

    crash = wait_until(recovered, "it recovered")
    wait_until(lambda: points_of(stack, job, "metric:loss") > 2, "a curve of the loss")
    stack.loom("report", job, "-o", str(shown))
    page.context.set_offline(True)
    page.goto(f"file://{shown}")
    expect(page.get_by_role("heading", name=job, exact=True)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("loss"))).to_be_visible()
    expect(page.get_by_text("SIGKILL").first).to_be_visible()
    assert not looker.axe()
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    page.set_viewport_size({"width": 390, "height": 800})
    assert not page.evaluate(OUTSIDE)
    stack.loom("incident", crash, "--html", str(tmp_path / "incident.html"))
    page.goto(f"file://{tmp_path / 'incident.html'}")
    expect(page.get_by_role("heading", level=1)).to_contain_text(crash)
    assert not looker.axe()


def test_the_bundle_is_small() -> None:
    import gzip

    from torchloom.api.page import DIST

    files = [path for path in DIST.rglob("*") if path.suffix in (".js", ".css", ".html")]
    if not files and os.environ.get("CI") != "true":
        pytest.skip("the page is not built")
    assert 0 < sum(len(gzip.compress(path.read_bytes(), 9)) for path in files) <= 150_000
