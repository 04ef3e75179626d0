"""A script with the probe inside runs and ends as it does under python, whatever becomes of its box."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from probed import Warm, blob, cold, new_box, plain_python

from torchloom.wire.blackbox import (
    END,
    Header,
    Life,
    Progress,
    WorkerPhase,
)

ENDS = [
    "last line",
    "code 0",
    "code 3",
    "code 259",
    "message",
    "exception",
    "chained",
    "os._exit",
    "SIGTERM",
    "interrupted",
    "late thread",
    "own excepthook",
    "forked child",
    "looks",
]


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_same_as_under_python(end: str, box: Path, warm: Warm) -> None:
    expected = plain_python("ends.py", end)
    new_box(box)
    spec = {"script": "ends.py", "argv": [end], "box": str(box)}
    assert cold(spec) == expected
    if end != "looks":  # sys.path and file descriptors of the miniature spawner are its own
        new_box(box)
        assert warm(spec) == expected


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"bad.py": "x = (\n"}, ["bad.py"]),
        ({"latin.py": "# -*- coding: latin-1 -*-\nprint('caf\\xe9')\n"}, ["latin.py"]),
        ({}, ["missing.py"]),
        ({}, ["./sub/../missing.py"]),
        ({"app/__main__.py": "import sys; print(sys.argv, sys.path[0], __spec__.name)"}, ["app", "x"]),
        ({"app/other.py": ""}, ["app"]),
        ({"sub/real.py": "import sys; print(__file__, sys.path[0], sys.argv)"}, ["./sub/../sub/real.py"]),
        ({"m.py": "import sys; print(__spec__.name, sys.argv, sys.path[0])"}, ["-m", "m", "-x"]),
        ({}, ["-m", "nothing.here"]),
        ({"m.py": "1/0"}, ["-m", "m"]),
        ({"f.py": "from __future__ import annotations\nx: nonsense = 1\nprint(__annotations__)"}, ["f.py"]),
    ],
)
def test_odd_programs_behave_as_under_python(
    files: dict[str, str], arguments: list[str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1")
    if arguments[0] == "-m":
        spec: dict[str, Any] = {"module": arguments[1], "argv": arguments[2:]}
    else:
        spec = {"script": arguments[0], "argv": arguments[1:]}
    assert cold(spec, tmp_path) == plain_python(*arguments, cwd=tmp_path)


def test_a_script_behind_a_link_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("print('here')")
    (tmp_path / "real" / "script.py").write_text("import neighbour, sys; print(__file__, sys.path[0])")
    (tmp_path / "link.py").symlink_to("real/script.py")
    expected = plain_python("link.py", cwd=tmp_path)
    assert expected.out.startswith("here")
    assert cold({"script": "link.py", "argv": []}, tmp_path) == expected


def test_relative_imports_work_in_a_module(warm: Warm) -> None:
    for arguments in (["x"], ["fail"]):
        expected = plain_python("-m", "package", *arguments)
        spec = {"module": "package", "argv": arguments}
        assert cold(spec) == expected
        assert warm(spec) == expected


@pytest.mark.parametrize("method", ["spawned", "forked"])
def test_data_workers_find_the_main_module(method: str, box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "loaders.py", "argv": [method], "box": str(box)})
    assert outcome == (0, "", "")
    assert view.progress(Progress.STEPS) == (2 if method == "spawned" else 4)


def test_an_error_inside_a_data_loader_shows_no_frame_of_ours(box: Path, warm: Warm) -> None:
    new_box(box)
    outcome = warm({"script": "loaders.py", "argv": ["broken"], "box": str(box)})
    assert outcome == plain_python("loaders.py", "broken")


@pytest.mark.parametrize(
    ("end", "how", "code", "exception"),
    [
        ("last line", "exit", 0, None),
        ("code 3", "exit", 3, None),
        ("message", "exit", 1, None),
        ("exception", "exception", 1, "KeyError"),
        ("interrupted", "signal", 130, "KeyboardInterrupt"),
        ("forked child", "exit", 0, None),
    ],
)
def test_the_end_is_recorded(end: str, how: str, code: int, exception: str | None, box: Path) -> None:
    view = new_box(box)
    cold({"script": "ends.py", "argv": [end], "box": str(box)})
    record = blob(view, END)
    assert (record["how"], record["code"], record["exception"]) == (how, code, exception)
    assert view.header(Header.LIFE) == Life.ENDED
    assert view.progress(Progress.PHASE) == WorkerPhase.ENDING
    if exception == "KeyError":
        assert "in boom" in record["traceback"] and "torchloom" not in record["traceback"]


def test_a_process_that_ends_without_us_leaves_no_end_record(box: Path) -> None:
    view = new_box(box)
    assert cold({"script": "ends.py", "argv": ["os._exit"], "box": str(box)}).code == 7
    assert view.read_blob(END) == b""
    assert view.header(Header.LIFE) == Life.RUNNING
    assert view.header(Header.PID) > 0 and view.header(Header.START_TICKS) > 0


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "magic", "layout", "directory", "link"])
def test_without_a_good_box_the_script_runs_all_the_same(damage: str, box: Path) -> None:
    match damage:
        case "empty":
            box.touch()
        case "short":
            box.write_bytes(bytes(4096))
        case "magic":
            new_box(box).set_header(Header.MAGIC, 1)
        case "layout":
            new_box(box).set_header(Header.LAYOUT, 99)
        case "directory":
            box.mkdir()
        case "link":
            new_box(box.with_name("elsewhere"))
            box.symlink_to("elsewhere")
    assert cold({"script": "ends.py", "argv": ["last line"], "box": str(box)}) == (0, "done\n", "")
