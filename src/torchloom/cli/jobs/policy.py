"""Reads policy files (TOML). core/policy/parsing.py says what may be in one, rules.py what it means."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.errors import NotFound, UsageError

if TYPE_CHECKING:
    from torchloom.model.policy import Policy

FILE = "policy.toml"
"""In LOOM_HOME: the policy of jobs without one of their own."""


def read(path: Path) -> dict[str, Any]:
    """The file's content, checked."""
    from torchloom.core.policy.parsing import PolicyProblem, policy_from

    try:
        text = path.read_text()
        data = tomllib.loads(text)
    except FileNotFoundError:
        raise NotFound(f"The policy file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The policy file {path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The policy file {path} is not TOML: {error}.") from None
    try:
        policy_from(data)
    except PolicyProblem as error:
        line = line_of(text, error.word, error.within)
        place = f"{path}, line {line}" if line else str(path)
        raise UsageError(f"{place}: {error.message}") from None
    return data


def line_of(text: str, word: str, within: str) -> int:
    """Line of a key, or of the section it would be in; 0 if it cannot be found (an inline table)."""
    section, begins = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\s*([^\]]+?)\s*\]", line)
        if head is not None:
            section = re.sub(r"[\"'\s]", "", head[1])
            begins = number if section == within else begins
            if word and section.rpartition(".")[2] == word and section == (within or section):
                return number
            continue
        key = re.match(r"\s*[\"']?([A-Za-z0-9_.-]+)[\"']?\s*=", line)
        if key is not None and key[1] == word and section == within:
            return number
    return begins


def of_home(root: Path) -> Policy:
    """The policy of this home; the defaults when it has none."""
    from torchloom.core.policy.parsing import policy_from
    from torchloom.model.policy import Policy

    path = root / FILE
    return policy_from(read(path)) if path.exists() else Policy()
