"""What the README and the docs say is true: commands exist, snippets run, links lead somewhere."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchloom.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands() -> list[tuple[str, str]]:
    """Every `loom …` line in a shell block, as (page, command)."""
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                words = line.split("#")[0].split()
                if words and Path(words[0]).name == "loom" and len(words) > 1:
                    found.append((page.name, " ".join(words[1:])))
    return found


@functools.cache
def help_of(verb: str) -> tuple[int, str]:
    """Exit code and text; in this process, as a command line of its own takes half a second to start."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            code = run([verb, "--help"])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, shown.getvalue()


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_in_the_docs_exists_with_its_flags(page: str, command: str) -> None:
    verb, *rest = command.split()
    code, shown = help_of(verb)
    assert code == 0 and "loom" in shown, f"{page}: loom {verb}: {shown}"
    script = next((i for i, word in enumerate(rest) if word.endswith(".py")), len(rest))
    for flag in (word.split("=")[0] for word in rest[:script] if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", shown), f"{page}: loom {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_that_the_readme_names_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_the_readmes_python_runs_without_torchloom_around() -> None:
    (snippet,) = blocks(ROOT / "README.md", "python")
    program = f"step, steps, loss = 3, 10, 0.5\n{snippet}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_the_steering_guides_python_runs_without_torchloom_around() -> None:
    (snippet,) = blocks(ROOT / "docs" / "steering.md", "python")
    program = f"{snippet}\nassert clip.value == 1.0"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_exit_codes_in_the_readme_are_those_of_the_errors() -> None:
    from torchloom import errors

    text = (ROOT / "README.md").read_text().replace("\n", " ")
    for name, words in (
        ("JobFailed", "1 the job failed"),
        ("UsageError", "2 usage"),
        ("NotFound", "3 not found"),
        ("NotAllowed", "4 not allowed"),
        ("Conflict", "5 conflict"),
        ("TimedOut", "6 timed out"),
    ):
        assert words in text and getattr(errors, name).exit_code == int(words[0])
