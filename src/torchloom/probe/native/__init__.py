"""Builds and finds the native recorder. How a library is compiled and kept is torchloom/compiled.py's.

The library is compiled once, at set-up (`python -m torchloom.probe.native`), and never by a worker: a worker
only looks for it (`find`) and does without when it is not there. Nothing is loaded here; that is
probe/observe/recorder.py's.
"""

from __future__ import annotations

from pathlib import Path

from torchloom import compiled
from torchloom.compiled import Build, BuildOutcome
from torchloom.probe.observe.operators import OPERATIONS
from torchloom.wire import blackbox

__all__ = ["RECORDER", "Build", "BuildOutcome", "build", "find", "layout_header"]


def find() -> Path | None:
    """The newest library for this torch and this source that is safe to load, or None."""
    return compiled.find(RECORDER)


def build() -> Build:
    """Compile the library unless it is there. Safe to run several times at once."""
    return compiled.build(RECORDER)


def layout_header() -> str:
    """layout.h: the offsets, words and operators of the Python definitions, for C++."""
    numbers: dict[str, int] = {
        name: value for name, value in vars(blackbox).items() if name.isupper() and isinstance(value, int)
    }
    numbers |= {word.name: word.value for word in blackbox.CollectiveWord}
    numbers |= {f"GROUP_{word.name}": word.value for word in blackbox.GroupWord}
    numbers |= {source.name: source.value for source in blackbox.Source}
    numbers |= {f"PROGRESS_{word.name}": word.value for word in blackbox.Progress}
    numbers |= {f"DEVICE_{state.name}": state.value for state in blackbox.DeviceState}
    numbers |= {"DEVICE_ERROR_AT": blackbox.DEVICE_ERROR.at}
    numbers |= {"DEVICE_ERROR_BYTES": blackbox.DEVICE_ERROR.capacity}
    lines = [f"constexpr uint64_t {name} = {value}ull;" for name, value in numbers.items()]
    rows = [
        f'  {{"{o.name}", "{o.sized_by}", "{o.peer_from}", {o.code}, '
        f"{o.paired:d}, {o.sends:d}, {o.coalesced:d}}},"
        for o in OPERATIONS
    ]
    return "\n".join(
        [
            "#include <cstdint>",
            "namespace loom::layout {",
            *lines,
            "struct Operation {",
            "  const char *name, *sized_by, *peer_from;",
            "  uint64_t code;",
            "  bool paired, sends, coalesced;",
            "};",
            "inline constexpr Operation OPERATIONS[] = {",
            *rows,
            "};",
            "}",
            "",
        ]
    )


def _header() -> tuple[str, str]:
    return "layout.h", layout_header()


_SOURCES = tuple(Path(__file__).with_name(name) for name in ("recorder.cpp", "box.h", "device.h"))
RECORDER = compiled.Library("recorder", _SOURCES, _header)
