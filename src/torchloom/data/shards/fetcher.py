"""A reader's end of the fetching process: starts it when first needed, asks, and waits for the answer.

Belongs to one process: after a fork the child starts its own. It does not know caches or stores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

from torchloom import errors
from torchloom.data.shards.index import Shard


class Fetcher:
    """Fetches the shards of one dataset into the cache of this host."""

    def __init__(self, uri: str, cache_dir: Path, cache_bytes: int) -> None:
        self._setting = {"uri": uri, "cache_dir": str(cache_dir), "cache_bytes": cache_bytes}
        self._owner = 0
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._asked = 0

    def __getstate__(self) -> dict[str, Any]:
        return self._setting

    def __setstate__(self, setting: dict[str, Any]) -> None:
        self.__init__(setting["uri"], Path(setting["cache_dir"]), setting["cache_bytes"])  # type: ignore[misc]

    def read(self, name: str, most: int) -> bytes:
        """A small file of the dataset."""
        text: str = self._ask({"read": name, "most": most})["text"]
        return text.encode()

    def get(self, shard: Shard) -> Path:
        """The shard as a local file, checked."""
        return Path(self._ask({"get": _wire(shard)})["path"])

    def ahead(self, shard: Shard) -> None:
        """Begin to fetch what is wanted soon; returns at once, and a failure shows only when it is wanted."""
        with self._lock_of_this_process():
            self._send({"ahead": _wire(shard)})

    def close(self) -> None:
        if self._process is not None:
            _end(self._process, self._owner)
            self._process = None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock_of_this_process():
            self._asked += 1
            self._send({"id": self._asked, **request})
            assert self._process is not None and self._process.stdout is not None
            for line in self._process.stdout:
                answer: dict[str, Any] = json.loads(line)
                if answer["id"] == self._asked:
                    break
            else:
                self.close()
                raise errors.DataDamaged("the process that fetches shards has ended", hint="look at stderr")
        if "error" in answer:
            raise getattr(errors, answer["kind"], errors.DataDamaged)(answer["error"], hint=answer["hint"])
        return answer

    def _send(self, request: dict[str, Any]) -> None:
        process = self._process or self._started()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self.close()
            raise errors.DataDamaged(
                "the process that fetches shards has ended", hint="look at stderr"
            ) from None

    def _started(self) -> subprocess.Popen[str]:
        root = str(Path(errors.__file__).parents[1])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
        process = subprocess.Popen(
            [sys.executable, "-m", "torchloom.data.shards.fetch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._process, self._owner = process, os.getpid()
        weakref.finalize(self, _end, process, self._owner)
        self._send(self._setting)
        return process

    def _lock_of_this_process(self) -> threading.Lock:
        if self._process is not None and self._owner != os.getpid():
            # Forked: the pipes and the lock are the parent's. Close our copies, so that its process may end.
            _end(self._process, self._owner)
            self._process, self._lock = None, threading.Lock()
        return self._lock


def _wire(shard: Shard) -> dict[str, Any]:
    return {"name": shard.name, "bytes": shard.bytes, "sha256": shard.sha256}


def _end(process: subprocess.Popen[str], owner: int) -> None:
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:
            pass
    if owner == os.getpid():
        # A data worker forked meanwhile holds copies of these pipes: closing ours need not end the process.
        process.kill()
        process.wait()
    else:
        process.returncode = 0  # not ours: keeps its destructor from asking after it
