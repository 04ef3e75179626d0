"""Runs the user's program in this process the way `python script.py …` or `python -m module …` would.

Owns: `sys.argv`, `sys.path[0]`, the permanent `__main__` module, compiling under the right file name, and
hiding our own frames from the traceback Python prints. It knows nothing of telemetry, and it does not end
the process: the script's exception (SystemExit included) passes on, and the interpreter ends as usual.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def execute(*, script: str | None, module: str | None, argv: Sequence[str]) -> None:
    """Run a script or a module to its end. Raises what it raises."""
    _tell_multiprocessing_where_it_is()
    if module is not None:
        _run_module(module, argv)
    elif script is not None:
        _run_script(script, argv)
    else:
        raise ValueError("there is neither a script nor a module to run")


def _run_module(name: str, argv: Sequence[str]) -> None:
    import runpy

    sys.argv[:] = ["-m", *argv]
    sys.orig_argv[:] = [sys.executable, "-m", name, *argv]
    _set_path0(os.getcwd())
    _new_main(importlib.machinery.BuiltinImporter)
    # The function behind `python -m`: it fills the real __main__ and words its own errors.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]


def _run_script(script: str, argv: Sequence[str]) -> None:
    sys.argv[:] = [script, *argv]
    sys.orig_argv[:] = [sys.executable, script, *argv]
    path = absolute(script)
    if _is_directory_or_archive(path):
        import runpy

        _set_path0(path)
        _new_main(importlib.machinery.BuiltinImporter)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
        return
    _set_path0(os.path.dirname(os.path.realpath(path)))
    loader_type = (
        importlib.machinery.SourcelessFileLoader
        if path.endswith(".pyc")
        else importlib.machinery.SourceFileLoader
    )
    loader = loader_type("__main__", path)
    main = _new_main(loader)
    main.__file__ = path
    main.__dict__["__cached__"] = None
    try:
        source = loader.get_data(path)
    except OSError as error:
        _cannot_open(path, error)
    if isinstance(loader, importlib.machinery.SourcelessFileLoader):
        code = loader.get_code("__main__")
    else:
        code = compile(source, path, "exec", dont_inherit=True)
    assert code is not None
    exec(code, main.__dict__)


def absolute(script: str) -> str:
    """The path Python shows for a script: made absolute, but not otherwise tidied."""
    return os.path.join(os.getcwd(), script)


def _is_directory_or_archive(path: str) -> bool:
    import pkgutil

    return pkgutil.get_importer(path) is not None


def _cannot_open(path: str, error: OSError) -> NoReturn:
    sys.stderr.write(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n")
    raise SystemExit(2)


def _set_path0(entry: str) -> None:
    """Put the script's directory where Python has put that of `-m torchloom.…`."""
    if sys.flags.safe_path:
        return
    if sys.path:
        sys.path[0] = entry
    else:
        sys.path.append(entry)


def _new_main(loader: object) -> types.ModuleType:
    """A real, permanent __main__: pickling and spawned data workers look it up by name."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__loader__=loader, __spec__=None, __annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    return main


def _tell_multiprocessing_where_it_is() -> None:
    """A warm process imported multiprocessing in another directory and shares its key with its siblings."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    process.ORIGINAL_DIR = os.path.abspath(os.curdir)
    process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


def hide_our_frames(error: BaseException) -> None:
    """Make Python print (or hand to the script's own excepthook) the traceback without our frames.

    Called where the error is caught, before it is raised again: what is above is the user's, what gets
    added on the way out is ours.
    """
    clean = _without_ours(error.__traceback__)
    error.__traceback__ = clean
    seen = {id(error)}
    linked = [error.__cause__, error.__context__]
    while linked:
        other = linked.pop()
        if other is not None and id(other) not in seen:
            seen.add(id(other))
            other.__traceback__ = _without_ours(other.__traceback__)
            linked += [other.__cause__, other.__context__]
    if not isinstance(error, SystemExit):  # that one is never printed
        sys.excepthook = _excepthook(error, clean, sys.excepthook)


def _excepthook(
    error: BaseException, clean: types.TracebackType | None, theirs: Callable[..., object]
) -> Callable[[type[BaseException], BaseException, types.TracebackType | None], object]:
    def hook(kind: type[BaseException], value: BaseException, full: types.TracebackType | None) -> object:
        sys.excepthook = theirs
        if value is not error:
            return theirs(kind, value, full)
        sys.last_traceback = clean
        return theirs(kind, value.with_traceback(clean), clean)

    return hook


def _without_ours(entry: types.TracebackType | None) -> types.TracebackType | None:
    """Unlink the entries of this package's files; the others stay the same objects."""
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(_OURS):
        entry = entry.tb_next
    if entry is not None:
        kept = entry
        while kept.tb_next is not None:
            if kept.tb_next.tb_frame.f_code.co_filename.startswith(_OURS):
                kept.tb_next = kept.tb_next.tb_next
            else:
                kept = kept.tb_next
    return entry
