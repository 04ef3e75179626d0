"""The keys of jobs' environments: files of a weaver's home, or derived from a secret that several share."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

from torchloom.errors import UsageError
from torchloom.home import Home
from torchloom.weaver.job_keys import DerivedKeys, JobKeys, KeyFiles

LEAST_CHARS = 32


def read_secret(path: Path) -> bytes:
    """A secret that several services share; raises UsageError for one that could be guessed."""
    try:
        secret = path.expanduser().read_bytes().strip()
    except OSError as error:
        raise UsageError(f"the secret {path} cannot be read ({error.strerror})") from None
    if len(secret) < LEAST_CHARS:
        raise UsageError(f"the secret in {path} is shorter than {LEAST_CHARS} characters")
    return secret


def keys_of(home: Home) -> JobKeys:
    """LOOM_KEYS_SECRET_FILE names a secret that all weavers of a cluster have; without it, files."""
    named = os.environ.get("LOOM_KEYS_SECRET_FILE", "")
    if not named:
        return KeyFiles(home.keys_dir)
    secret = read_secret(Path(named))
    return DerivedKeys(lambda name: hmac.digest(secret, f"torchloom key {name}".encode(), hashlib.sha256))
