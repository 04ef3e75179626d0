"""Reads policy files (TOML). What a policy means is in core/policy.py."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.errors import NotFound, UsageError

if TYPE_CHECKING:
    from torchloom.model.policy import Policy

FILE = "policy.toml"
"""In LOOM_HOME: the policy of jobs that bring none."""


def read(path: Path) -> dict[str, Any]:
    """The file's content, checked."""
    from torchloom.core.policy import policy_from

    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"The policy file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The policy file {path} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"The policy file {path} is not TOML: {error}.") from None
    try:
        policy_from(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}") from None
    return data


def of_home(root: Path) -> Policy:
    """The policy of this home; the defaults when it has none."""
    from torchloom.core.policy import policy_from
    from torchloom.model.policy import Policy

    path = root / FILE
    return policy_from(read(path)) if path.exists() else Policy()
