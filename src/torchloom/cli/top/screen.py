"""The screen of `loom top`: three tables, keys, and a question before anything is done to a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from torchloom.cli.top.readings import FleetReading, read
from torchloom.cli.top.rows import (
    INCIDENT_COLUMNS,
    JOB_COLUMNS,
    RANK_COLUMNS,
    RANK_SORTS,
    SORTS,
    Row,
    incident_rows,
    job_rows,
    only,
    rank_rows,
    that_fit,
)
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.terminal import visible

HELP = """\
↑ ↓       choose a job          Tab    next table
Enter     show its ranks        a      also jobs that have ended
/         filter, Esc clears    s      sort the jobs     r   sort the ranks
p         pause or resume       c      checkpoint now
x         stop                  q      leave

Keys that change a job ask first. With --read-only they do nothing."""


class Question(ModalScreen[bool]):
    """Yes or no. Everything but `y` is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]
    DEFAULT_CSS = (
        "Question {align: center middle;} Question Static {width: 64; padding: 1 2; border: solid $accent;}"
    )

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{visible(self._text)}\n\ny  yes    n  no"))

    def action_answer(self, yes: bool) -> None:
        self.dismiss(yes)


class Help(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "close")]
    DEFAULT_CSS = "Help {align: center middle;} Help Static {width: 72; padding: 1 2; border: solid $accent;}"

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP))


class Top(App[None]):
    TITLE = "torchloom"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #said {height: 1; padding: 0 1;}
    #jobs {height: 2fr;} #ranks {height: 2fr; display: none;} #incidents {height: 1fr; min-height: 4;}
    #filter {display: none; height: 3;}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "leave"),
        Binding("question_mark", "help", "help"),
        Binding("slash", "filter", "filter"),
        Binding("s", "sort", "sort"),
        Binding("r", "sort_ranks", "sort ranks", show=False),
        Binding("a", "ended", "ended too"),
        Binding("p", "pause", "pause"),
        Binding("c", "checkpoint", "save"),
        Binding("x", "stop", "stop"),
        Binding("escape", "clear", "clear", show=False),
    ]

    def __init__(self, endpoint: Endpoint, every_s: float, read_only: bool) -> None:
        super().__init__()
        self._reader, self._actor = Client(endpoint), Client(endpoint)
        self._every_s, self._read_only = every_s, read_only
        self._reading, self._as_of_s = FleetReading(), 0.0
        self._sort, self._rank_sort, self._wanted = "newest", "rank", ""
        self._ended_too, self._shown_job = False, ""

    def compose(self) -> ComposeResult:
        yield Static(id="said")
        with Vertical():
            yield DataTable(id="jobs", cursor_type="row", zebra_stripes=True)
            yield DataTable(id="ranks", cursor_type="row")
            yield DataTable(id="incidents", cursor_type="row")
        yield Input(id="filter", placeholder="part of a job's name or state; Enter to keep, Esc to clear")
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in (
            ("jobs", JOB_COLUMNS),
            ("ranks", RANK_COLUMNS),
            ("incidents", INCIDENT_COLUMNS),
        ):
            table = self._table(name)
            for column in columns:
                table.add_column(column, key=column)
        self._table("jobs").focus()
        self.run_worker(self._look, thread=True, group="reader")

    # -- reading, beside the screen -----------------------------------------------------------------
    def _look(self) -> None:
        while self.is_running:
            found = read(self._reader, self._shown_job, self._ended_too)
            try:
                self.call_from_thread(self._show, found)
            except RuntimeError:  # the screen has ended meanwhile
                return
            time.sleep(self._every_s)

    def _show(self, found: FleetReading) -> None:
        if not found.failed:
            self._reading, self._as_of_s = found, time.time()
        now = self._reading
        open_ones = sum(one["open"] for one in now.incidents)
        clock = time.strftime("%H:%M:%S", time.localtime(self._as_of_s)) if self._as_of_s else "–"
        parts = [f"{len(now.jobs)} jobs", f"{open_ones} open incidents", f"as of {clock}", f"by {self._sort}"]
        parts += [f"filter {self._wanted!r}"] * bool(self._wanted) + ["read-only"] * self._read_only
        if found.failed:
            parts.insert(0, f"OLD DATA: {found.failed}")
        self.query_one("#said", Static).update(Text(" · ".join(parts)))
        self._fill_jobs(job_rows(now.jobs, self._sort, self._wanted))
        self._fill("incidents", incident_rows(now.incidents, self._wanted))
        if now.ranks is not None and self._shown_job == now.ranks["job"]:
            self._fill("ranks", rank_rows(now.ranks, self._rank_sort))

    def _fill_jobs(self, rows: list[Row]) -> None:
        """Only columns that the terminal shows whole."""
        table = self._table("jobs")
        columns = that_fit(rows, table.scrollable_content_region.width)
        if columns != tuple(str(column.value) for column in table.columns):
            table.clear(columns=True)
            for column in columns:
                table.add_column(column, key=column)
        self._fill("jobs", only(columns, rows))

    def on_resize(self) -> None:
        if self._as_of_s:
            self._show(self._reading)

    def _fill(self, name: str, rows: list[Row]) -> None:
        """Bring a table up to date without moving what a person looks at."""
        table = self._table(name)
        keys = [key for key, _ in rows]
        if keys == [str(row.value) for row in table.rows]:
            columns = list(table.columns)
            for key, cells in rows:
                for column, cell in zip(columns, cells, strict=True):
                    if str(table.get_cell(key, column)) != cell:
                        table.update_cell(key, column, Text(cell), update_width=True)
            return
        chosen, top = self._chosen(name), table.scroll_y
        table.clear()
        for key, cells in rows:
            table.add_row(*(Text(cell) for cell in cells), key=key)
        if chosen in keys:
            table.move_cursor(row=keys.index(chosen), scroll=False)
        table.scroll_to(y=top, animate=False)

    def _table(self, name: str) -> DataTable[Text]:
        return self.query_one(f"#{name}", DataTable)

    def _chosen(self, name: str = "jobs") -> str:
        table = self._table(name)
        if not table.row_count or not table.is_valid_row_index(table.cursor_row):
            return ""
        return str(table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value)

    # -- looking ------------------------------------------------------------------------------------
    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "jobs":
            self._shown_job = "" if self._shown_job == self._chosen() else self._chosen()
            ranks = self._table("ranks")
            ranks.clear()
            ranks.display = bool(self._shown_job)

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_sort(self) -> None:
        self._sort = _next(list(SORTS), self._sort)
        self._show(self._reading)

    def action_sort_ranks(self) -> None:
        self._rank_sort = _next(list(RANK_SORTS), self._rank_sort)
        self._show(self._reading)

    def action_ended(self) -> None:
        self._ended_too = not self._ended_too
        self.notify("jobs that have ended are shown too" if self._ended_too else "only active jobs")

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.display = True
        line.focus()

    def action_clear(self) -> None:
        self._wanted = ""
        line = self.query_one("#filter", Input)
        line.value, line.display = "", False
        self._table("jobs").focus()
        self._show(self._reading)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._show(self._reading)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.query_one("#filter", Input).display = False
        self._table("jobs").focus()

    # -- acting -------------------------------------------------------------------------------------
    def action_pause(self) -> None:
        job = self._chosen()
        paused = any(one["id"] == job and one["paused"] for one in self._reading.jobs)
        if paused:
            self._ask(f"Resume {job}?", lambda: self._actor.resume(job), f"{job} resumes")
        else:
            self._ask(f"Pause {job} at its next step?", lambda: self._actor.pause(job), f"{job} pauses")

    def action_checkpoint(self) -> None:
        job = self._chosen()
        self._ask(
            f"Save a checkpoint of {job} at its next step?",
            lambda: self._actor.checkpoint_now(job),
            f"{job} saves",
        )

    def action_stop(self) -> None:
        job = self._chosen()
        self._ask(f"Stop {job}? The job is over then.", lambda: self._actor.stop(job), f"{job} stops")

    def _ask(self, question: str, act: Callable[[], object], done: str) -> None:
        if self._read_only:
            self.notify("read-only: nothing is changed", severity="warning")
        elif not self._chosen():
            self.notify("no job is chosen", severity="warning")
        else:

            def answered(yes: bool | None) -> None:
                if yes:
                    self.run_worker(lambda: self._act(act, done), thread=True, group="actor")

            self.push_screen(Question(question), answered)

    def _act(self, act: Callable[[], object], done: str) -> None:
        try:
            act()
            said, severe = done, False
        except LoomError as error:
            said, severe = error.message, True
        try:
            self.call_from_thread(
                self.notify, said, severity="error" if severe else "information", markup=False
            )
        except RuntimeError:  # the screen has ended meanwhile
            return


def _next(names: list[str], now: str) -> str:
    return names[(names.index(now) + 1) % len(names)]
