"""The process that fetches shards for one reader (`python -m torchloom.data.shards.fetch`); see `fetcher`.

A separate process, because the object store's client has its own threads and does not survive a fork: in
a forked data worker a request made through it never comes back. It reads one JSON request per line from stdin
and answers on stdout; it ends when stdin does, so it does not outlive its reader, and may be killed at any
time (a part file is swept). It knows nothing of samples.

    → {"uri": …, "cache_dir": …, "cache_bytes": …}            first line
    → {"id": 1, "read": "index.json", "most": 1000}           ← {"id": 1, "text": …}
    → {"id": 2, "get": {"name": …, "bytes": …, "sha256": …}}  ← {"id": 2, "path": …}
    → {"ahead": {…}}                                          no answer: the shard is likely wanted soon
    on failure                                                ← {"id": 2, "error": …, "hint": …, "kind": …}
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from torchloom.data.shards.cache import Cache
from torchloom.data.shards.source import ShardSource, open_source
from torchloom.errors import DataDamaged, LoomError


class Fetching:
    """Answers requests, each in a thread, so that a shard wanted now does not wait for one wanted later."""

    def __init__(self, source: ShardSource, cache: Cache) -> None:
        self._source, self._cache = source, cache
        self._answering = threading.Lock()

    def take(self, request: dict[str, Any]) -> None:
        threading.Thread(target=self._answer, args=(request,), daemon=True).start()

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = self._done(request)
        except LoomError as error:
            answer = {"error": error.message, "hint": error.hint, "kind": type(error).__name__}
        except BaseException as error:  # noqa: BLE001 – top of a service: the reader waits for an answer
            answer = {"error": f"fetching failed ({error!r})", "hint": "", "kind": "DataDamaged"}
        if "id" in request:
            with self._answering:
                sys.stdout.write(json.dumps({"id": request["id"], **answer}) + "\n")
                sys.stdout.flush()

    def _done(self, request: dict[str, Any]) -> dict[str, Any]:
        if "read" in request:
            return {"text": self._read(request["read"], request["most"]).decode(errors="replace")}
        shard = request.get("get") or request["ahead"]
        return {"path": str(self._shard(shard, patient="get" in request))}

    def _shard(self, shard: dict[str, Any], patient: bool) -> Path | None:
        for last in (False, True):
            try:
                return self._cache.get(
                    shard["sha256"],
                    shard["bytes"],
                    lambda: self._source.chunks(shard["name"]),
                    patient=patient,
                )
            except DataDamaged as error:
                # Once more, because a connection that broke in the middle looks the same as a bad shard.
                if last:
                    raise DataDamaged(f"{shard['name']}: {error.message}", hint=error.hint) from None
        raise AssertionError

    def _read(self, name: str, most: int) -> bytes:
        content = b""
        for chunk in self._source.chunks(name):
            content += chunk
            if len(content) > most:
                raise DataDamaged(f"{name} is larger than {most:,} bytes")
        return content


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the reader; its end is ours
    setting = json.loads(sys.stdin.readline() or "null")
    if setting is None:
        return
    opened: Fetching | None = None
    failure: LoomError | None = None
    try:
        cache = Cache(Path(setting["cache_dir"]), setting["cache_bytes"])
        opened = Fetching(open_source(setting["uri"], os.environ), cache)
    except LoomError as error:
        failure = error
    for line in sys.stdin:
        request = json.loads(line)
        if opened is not None:
            opened.take(request)
        elif failure is not None and "id" in request:
            told = {"error": failure.message, "hint": failure.hint, "kind": type(failure).__name__}
            print(json.dumps({"id": request["id"], **told}), flush=True)
    os._exit(0)  # do not wait for a download that is no longer wanted; its part file is swept


if __name__ == "__main__":
    main()
