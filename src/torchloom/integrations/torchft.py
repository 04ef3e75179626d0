"""torchft: reports quorums and commits, and ends a broken collective the moment a replica's death is known.

`loom run --replicas N` switches this on when the script imports torchft; no line of the script changes. By
hand: `from torchloom.integrations.torchft import Manager`. Outside torchloom both are torchft's own classes.

One thread listens to the lighthouse. It touches nothing but a process group whose quorum has a dead member,
so that the collective there fails now and not after its timeout (broken_groups.py). torchft then skips that
step. Changes of settings take effect with commits, on all replicas with the same one (replica_settings.py).
The position in the data moves with commits and travels to a replica that heals (replica_data.py).
"""

from __future__ import annotations

import functools
import os
import socket
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import ModuleType
from typing import Any

from torchloom.integrations import sync_rounds
from torchloom.integrations.broken_groups import BrokenGroups, WatchedGroup
from torchloom.integrations.lighthouse_news import LighthouseLink
from torchloom.integrations.replica_data import KEY, ReplicaData
from torchloom.integrations.replica_settings import ReplicaSettings
from torchloom.integrations.replica_waits import HeldBack, QuorumWaits
from torchloom.probe import api, session

NEWS = "LOOM_LIGHTHOUSE_NEWS"

DOOR = "TORCHFT_LIGHTHOUSE"

_LONGEST_ERROR = 200

_groups = BrokenGroups()
_listening = threading.Lock()
_settings: ReplicaSettings | None = None
_data = ReplicaData()
_waits = QuorumWaits()
_held = HeldBack()


def __getattr__(name: str) -> Any:
    """`Manager`, and whatever else torchft exports."""
    import torchft

    return getattr(torchft, name)


def activate(arrived: ModuleType) -> None:
    """A module of torchft has been imported."""
    if not os.environ.get(NEWS):
        return
    match arrived.__name__:
        case "torchft.manager":
            _watch_manager(arrived.Manager)
        case "torchft.process_group":
            _watch_groups(arrived)
            _name_store(arrived.ProcessGroup)
        case "torchft.ddp":
            mend_comm_hook(arrived)
        case "torchft.checkpointing.http_transport":
            _name_host(arrived.HTTPTransport)
        case "torchft.local_sgd":
            sync_rounds.watch(arrived)


def _quietly(call: Callable[..., None], *args: Any) -> None:
    """Through the probe's guard: nothing of ours raises in the script."""
    if session.current is not None:
        session.current.guard.wrap(call)(*args)


def _watch_manager(manager: Any) -> None:
    made, began, committed = manager.__init__, manager.start_quorum, manager.should_commit
    healed, waited = manager._apply_pending_state_dict, manager.wait_quorum

    @functools.wraps(made)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if host := _address():
            kwargs.setdefault("hostname", host)
        made(self, *args, **kwargs)
        _quietly(_follow, self)

    @functools.wraps(began)
    def start_quorum(self: Any, *args: Any, **kwargs: Any) -> Any:
        _quietly(_data.asks)
        done = began(self, *args, **kwargs)
        if not self._use_async_quorum:
            _quietly(_data.begins)
        return done

    @functools.wraps(waited)
    def wait_quorum(self: Any) -> None:
        _waits.wait(functools.partial(waited, self))

    @functools.wraps(healed)
    def _apply_pending_state_dict(self: Any) -> None:
        pending = self._pending_state_dict or {}
        healed(self)
        _quietly(_data.load, pending.get("user", {}).get(KEY) or {})

    @functools.wraps(committed)
    def should_commit(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = committed(self, *args, **kwargs)
        _quietly(functools.partial(_data.ends, done, rounds=sync_rounds.commits_rounds(self)))
        _quietly(_report_commit, self, done)
        return done

    manager.__init__, manager.start_quorum, manager.should_commit = __init__, start_quorum, should_commit
    manager._apply_pending_state_dict, manager.wait_quorum = _apply_pending_state_dict, wait_quorum


def _address() -> str:
    """Where other nodes reach this one. torchft takes the host's name, which they may not know."""
    address = os.environ.get("LOOM_NODE_ADDRESS", "")
    local = not address or address.startswith("127.") or address in ("::1", "localhost")
    return "" if local else f"[{address}]" if ":" in address else address


def _name_host(transport: Any) -> None:
    metadata = transport.metadata

    @functools.wraps(metadata)
    def with_address(self: Any) -> Any:
        found, host = metadata(self), _address()
        return found.replace(f"//{socket.gethostname()}:", f"//{host}:", 1) if host else found

    transport.metadata = with_address


def _name_store(group: Any) -> None:
    """The nightly's process groups meet at a store of their own; 0.2.0 uses the store of the replica."""
    handle = getattr(group, "get_reconfigure_handle", None)
    if handle is None:
        return

    @functools.wraps(handle)
    def with_address(self: Any) -> Any:
        found, host = handle(self), _address()
        return found.replace(f'"{socket.gethostname()}:', f'"{host}:', 1) if host else found

    group.get_reconfigure_handle = with_address


def _follow(manager: Any) -> None:
    manager._client = QuorumClient(manager._client)
    manager._user_state_dicts[KEY] = _data.state
    if _listening.acquire(blocking=False):
        _listen()


def _listen() -> None:
    global _settings
    port = int(os.environ[DOOR].rpartition(":")[2])
    link = LighthouseLink(os.environ[NEWS], _heard, lambda: _hello(settings))
    door = f"{os.environ.get('LOOM_JOB', '')}.g{os.environ.get('LOOM_GENERATION', '')}"
    settings = _settings = ReplicaSettings(link.send, port, int(os.environ.get("RANK", "0")), door)
    if session.current is not None:
        session.current.replicas.leave = functools.partial(link.send, {"leaving": True})
    link.start()


def _hello(settings: ReplicaSettings) -> list[dict[str, Any]]:
    """A new connection. If this replica is left out, the lighthouse says so again."""
    _held.set(False)
    return settings.hello()


def _heard(news: Mapping[str, Any]) -> None:
    if "held" in news:
        _held.set(bool(news["held"]))
    elif "gone" in news:
        _groups.died(int(news["quorum"]), [str(id) for id in news["gone"]])
    elif _settings is not None:
        _settings.heard(news["changes"], int(news["asked"]))


def _report_commit(manager: Any, done: bool) -> None:
    """The committed step is the script's own step: a healed replica continues with the others' number."""
    if done:
        if not sync_rounds.commits_rounds(manager):
            api.step(manager._step - 1)  # the optimizer's step, which is part of the commit, is still to come
        if _settings is not None and _settings.busy and session.current is not None:
            replicas, step = session.current.replicas, manager._step
            replicas.at_boundary(functools.partial(_settings.committed, step, replicas))
    failures = {"torchft/failed_commits": manager._commit_failures, "torchft/error": _error(manager)}
    waits = _waits.committed(manager._quorum_id, done, rounds=sync_rounds.commits_rounds(manager))
    api.log(
        **{
            "torchft/quorum": manager._quorum_id,
            "torchft/replicas": manager._participating_replica_world_size,
            "torchft/healing": int(manager._healing),
            **({} if done else failures),
            **waits,
        }
    )


def _error(manager: Any) -> str:
    """Why the step was not committed, as torchft has it; the stable release has the bare exception."""
    error = manager.errored()
    if error is None:
        return "too few replicas, or another rank of this replica failed"
    return f"{getattr(error, 'original_exception', error)}"[:_LONGEST_ERROR]


class QuorumClient:
    """torchft's own client, which also notes who is in the quorum that this thread is about to configure."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        found = _held.ask(functools.partial(self._client._quorum, *args, **kwargs))
        _quietly(_groups.quorum, found.quorum_id, list(found.replica_ids))
        _quietly(_data.quorum, found.replica_rank, found.replica_world_size)
        if _settings is not None:
            _settings.quorum_formed()
        return found


def _watch_groups(process_group: Any) -> None:
    """A process group's sockets are those that exist after its construction and did not before."""
    gloo = process_group.ProcessGroupGloo
    create, connect = gloo._create_pg, process_group.create_store_client

    @functools.wraps(create)
    def _create_pg(self: Any, *args: Any, **kwargs: Any) -> Any:
        _quietly(_groups.before)
        made = _groups.aside(functools.partial(create, self, *args, **kwargs))
        _quietly(_groups.after, self, made)
        return made

    @functools.wraps(connect)
    def create_store_client(*args: Any, **kwargs: Any) -> Any:
        return _groups.aside(functools.partial(connect, *args, **kwargs))

    process_group.create_store_client = create_store_client

    wrap = gloo._wrap_work

    @functools.wraps(wrap)
    def _wrap_work(self: Any, work: Any, opts: Any) -> Any:
        made = wrap(self, work, opts)
        group = getattr(self, "_loom_group", None)
        return made if group is None else _breakable()(made, group)

    gloo._create_pg, gloo._wrap_work = _create_pg, _wrap_work


@functools.cache
def _breakable() -> Any:
    """A work whose `wait` ends when a member of its group has died. Made late: the script imports torch."""
    from torch.distributed.distributed_c10d import Work

    class BreakableWork(Work):
        def __init__(self, work: Any, group: WatchedGroup) -> None:
            super().__init__()
            self._work = work
            self._group = group

        def wait(self, timeout: timedelta | None = None) -> Any:
            return self._group.wait(self._work, timeout)

        def get_future(self) -> Any:
            return self._work.get_future()

        def is_completed(self) -> bool:
            return bool(self._work.is_completed())

        def exception(self) -> Any:
            return self._work.exception()

        def synchronize(self) -> None:
            self._work.synchronize()

        def result(self) -> Any:
            return self._work.result()

    return BreakableWork


def mend_comm_hook(ddp: Any) -> None:
    """In torchft 0.2 a survivor dies of `assert fut._fut` when an allreduce of its DDP fails.

    The manager has the error already and will not commit this step, so DDP gets its bucket back as it is.
    """
    if hasattr(ddp, "_completed"):
        return
    import torch

    def _comm_hook(state: Any, bucket: Any) -> Any:
        work = state.allreduce(bucket.buffer())
        work.wait()
        future = work.get_future()
        if not hasattr(future, "_managed_work"):
            return future  # after an error torchft returns a future that is already done
        if future._fut is not None:
            return future._fut
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    # torch checks these.
    _comm_hook.__annotations__ = {
        "bucket": torch.distributed.GradBucket,
        "return": torch.futures.Future[torch.Tensor],
    }
    ddp.DistributedDataParallel._comm_hook = staticmethod(_comm_hook)
