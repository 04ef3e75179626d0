"""Test programs that issue collectives one by one."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from rank import Rank
from torch._C._distributed_c10d import FakeProcessGroup

from torchloom.wire.blackbox import group_key

warnings.filterwarnings("ignore")

REDUCE_OPS = ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG")
DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
)
Case = tuple[str, str, int, Callable[[bool], tuple[Any, list[torch.Tensor]]]]
"""A name, the c10d operator it ends in, the bytes it should record, and how to run it."""


def matrix(me: Rank) -> dict[str, Any]:
    """Every operation × reduce op × dtype × sync/async: what came out, and what was recorded."""
    out: dict[str, Any] = {}
    for dtype in DTYPES:
        for asynchronous in (False, True):
            for name, op, size, run in cases(me, dtype):
                key = f"{name}/{str(dtype)[6:]}/{'async' if asynchronous else 'sync'}"
                out[key] = {
                    "op": op,
                    "bytes": size,
                    "async": asynchronous,
                    "dtype": str(dtype)[6:],
                    "result": outcome(run, asynchronous),
                    "records": me.new_records(),
                }
    return out


def outcome(run: Callable[[bool], tuple[Any, list[torch.Tensor]]], asynchronous: bool) -> str:
    """A digest of the tensors an operation leaves behind, or the error it raises."""
    try:
        work, tensors = run(asynchronous)
        for one in work if isinstance(work, list) else [work] if work is not None else []:
            one.wait()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    digest = hashlib.sha256()
    for tensor in tensors:  # looked at only now: before the wait it may be half done
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def cases(me: Rank, dtype: torch.dtype) -> Iterator[Case]:
    random_numbers = torch.Generator().manual_seed(1000 + me.rank)
    world, other = me.world, 1 - me.rank

    def fresh(count: int = 6) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.randn(count, generator=random_numbers).to(dtype)
        high = 2 if dtype == torch.bool else 100
        return torch.randint(0, high, (count,), generator=random_numbers).to(dtype)

    def empty(count: int = 6) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    item = fresh(1).element_size()
    six = 6 * item
    for name in REDUCE_OPS:
        op = getattr(dist.ReduceOp, name)
        whole, two = fresh(), [fresh(), fresh(3)]
        parts, wide = [fresh() for _ in range(world)], fresh(6 * world)
        out = empty()

        yield (
            f"all_reduce/{name}",
            "allreduce_",
            six,
            lambda a, op=op, x=whole: (dist.all_reduce(x, op, async_op=a), [x]),
        )
        yield (
            f"all_reduce_coalesced/{name}",
            "allreduce_coalesced_",
            9 * item,
            lambda a, op=op, x=two: (dist.all_reduce_coalesced(x, op, async_op=a), x),
        )
        yield (
            f"reduce/{name}",
            "reduce_",
            six,
            lambda a, op=op, x=fresh(): (dist.reduce(x, 1, op, async_op=a), [x]),
        )
        yield (
            f"reduce_scatter/{name}",
            "reduce_scatter_",
            six,
            lambda a, op=op, o=out, x=parts: (dist.reduce_scatter(o, x, op, async_op=a), [o]),
        )
        yield (
            f"reduce_scatter_tensor/{name}",
            "_reduce_scatter_base_",
            six,
            lambda a, op=op, o=empty(), x=wide: (dist.reduce_scatter_tensor(o, x, op, async_op=a), [o]),
        )
    outs, wide_out = [empty() for _ in range(world)], empty(6 * world)
    yield "broadcast", "broadcast_", six, lambda a, x=fresh(): (dist.broadcast(x, 1, async_op=a), [x])
    yield "all_gather", "allgather_", six, lambda a, x=fresh(): (dist.all_gather(outs, x, async_op=a), outs)
    yield (
        "all_gather_into_tensor",
        "_allgather_base_",
        six,
        lambda a, x=fresh(): (dist.all_gather_into_tensor(wide_out, x, async_op=a), [wide_out]),
    )
    yield (
        "all_gather_coalesced",
        "allgather_coalesced_",
        six,
        lambda a, x=fresh(): (
            dist.all_gather_coalesced([[empty()] for _ in range(world)], [x], async_op=a),
            [x],
        ),
    )
    yield (
        "gather",
        "gather_",
        six,
        lambda a, x=fresh(), o=[empty() for _ in range(world)] if me.rank == 0 else None: (
            dist.gather(x, o, 0, async_op=a),
            o or [],
        ),
    )
    yield (
        "scatter",
        "scatter_",
        six,
        lambda a, o=empty(), x=[fresh() for _ in range(world)] if me.rank == 0 else None: (
            dist.scatter(o, x, 0, async_op=a),
            [o],
        ),
    )
    yield (
        "all_to_all",
        "alltoall_",
        six * world,
        lambda a, o=[empty() for _ in range(world)], x=[fresh() for _ in range(world)]: (
            dist.all_to_all(o, x, async_op=a),
            o,
        ),
    )
    yield (
        "all_to_all_single",
        "alltoall_base_",
        six * world,
        lambda a, o=empty(6 * world), x=fresh(6 * world): (dist.all_to_all_single(o, x, async_op=a), [o]),
    )
    yield "barrier", "barrier", 0, lambda a: (dist.barrier(async_op=a), [])
    yield from paired_cases(me, fresh, empty, six, other)
    yield from functional_cases(fresh, six)
    if dtype.is_floating_point:
        yield (
            "inference",
            "allreduce_",
            six,
            torch.inference_mode()(lambda a, x=fresh(): (dist.all_reduce(x, async_op=a), [x])),
        )
    if dtype == torch.float32:
        sparse = torch.sparse_coo_tensor(torch.tensor([[me.rank, 2]]), torch.ones(2), (6,))
        yield (
            "sparse",
            "allreduce_",
            six,
            lambda a, x=sparse: (dist.all_reduce(x, async_op=a), [x]),
        )
        yield (
            "coalescing manager",
            "allreduce_coalesced_",
            2 * six,
            lambda a, x=[fresh(), fresh()]: (coalesced(x, a), x),
        )
        yield "monitored_barrier", "monitored_barrier_", 0, lambda a: (dist.monitored_barrier(), [])


def paired_cases(me: Rank, fresh: Any, empty: Any, size: int, other: int) -> Iterator[Case]:
    def blocking(_: bool, source: int | None = 0) -> tuple[Any, list[torch.Tensor]]:
        x = fresh() if me.rank == 0 else empty()
        if me.rank == 0:
            dist.send(x, 1)
        else:
            assert dist.recv(x, source) == 0
        return None, [x]

    def nonblocking(_: bool) -> tuple[Any, list[torch.Tensor]]:
        x, o = fresh(), empty()
        return [dist.isend(x, other), dist.irecv(o, other)], [o]

    def batched(_: bool) -> tuple[Any, list[torch.Tensor]]:
        x, o = fresh(), empty()
        ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, o, other)]
        return dist.batch_isend_irecv(ops), [o]

    mine = "send" if me.rank == 0 else "recv_"
    yield "send/recv", mine, size, blocking
    yield (
        "recv from any",
        "send" if me.rank == 0 else "recv_any_source_",
        size,
        lambda a: blocking(a, None),
    )
    yield "isend/irecv", "send recv_", size, nonblocking
    yield "batch_isend_irecv", "send recv_", size, batched


def functional_cases(fresh: Any, size: int) -> Iterator[Case]:
    group = dist.group.WORLD

    def waited(tensor: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
        return None, [functional.wait_tensor(tensor)]

    yield (
        "functional all_reduce",
        "allreduce_",
        size,
        lambda a, x=fresh(): waited(functional.all_reduce(x, "max", group)),
    )
    yield (
        "functional all_gather",
        "allgather_into_tensor_coalesced_",
        size,
        lambda a, x=fresh(): waited(functional.all_gather_tensor(x, 0, group)),
    )


def coalesced(tensors: list[torch.Tensor], asynchronous: bool) -> Any:
    with dist._coalescing_manager(async_ops=asynchronous) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    return manager if asynchronous else None


FIELDS = ("seq", "op", "group", "group_seq", "bytes", "peer")


def many(me: Rank) -> dict[str, Any]:
    """10,000 operations of mixed kinds on two groups, up to 250 in flight."""
    second = dist.new_group()
    chooser = random.Random(7)
    records: list[dict[str, Any]] = []
    expected: list[tuple[str, int, int]] = []
    works: list[Any] = []
    for number in range(10_000):
        size = chooser.choice((1, 10, 1000))
        kind = chooser.randrange(5)
        group = chooser.choice((None, None, second))
        tensor = torch.ones(size)
        if kind == 0:
            works.append(dist.all_reduce(tensor, async_op=True, group=group))
            expected.append(("allreduce_", 4 * size, key(group)))
        elif kind == 1:
            works.append(dist.broadcast(tensor, 0, async_op=True, group=group))
            expected.append(("broadcast_", 4 * size, key(group)))
        elif kind == 2:
            out = torch.empty(size * me.world)
            dist.all_gather_into_tensor(out, tensor, group=group)
            expected.append(("_allgather_base_", 4 * size, key(group)))
        elif kind == 3:
            if me.rank == 0:
                dist.send(tensor, 1, group=group)
            else:
                dist.recv(tensor, 0, group=group)
            expected.append(("send" if me.rank == 0 else "recv_", 4 * size, key(group)))
        else:
            works.append(dist.barrier(async_op=True, group=group))
            expected.append(("barrier", 0, key(group)))
        if number % 250 == 249:
            for work in works:
                work.wait()
            works.clear()
            records += me.new_records()
            if number % 1000 == 999:
                me.wait_for_reader()
    mismatch = [
        (want, got)
        for want, got in zip(expected, records, strict=False)
        if want != (got["op"], got["bytes"], got["group"])
    ]
    return {
        "count": len(records),
        "mismatch": mismatch[:3],
        "records": [[r[field] for field in FIELDS] for r in records],
        "unfinished": sum(1 for r in records if r["finished_ns"] == 0),
        "backwards": sum(1 for r in records if r["finished_ns"] and r["finished_ns"] < r["entered_ns"]),
        "sources": sorted({(r["op"], r["source"]) for r in records}),
        "progress": me.progress(),
    }


def key(group: Any) -> int:
    return group_key((group or dist.group.WORLD).group_name)


def groups(me: Rank) -> dict[str, Any]:
    """More groups than the table has room for, used from two threads at once."""
    made = [dist.new_group() for _ in range(70)]
    tensor = torch.ones(3)
    for _ in range(2):
        for group in made:
            dist.all_reduce(tensor, group=group)
    before = me.new_records()

    def use(group: Any) -> None:
        mine = torch.ones(5)
        for _ in range(300):
            dist.all_reduce(mine, group=group)

    threads = [threading.Thread(target=use, args=(group,)) for group in made[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert me.view is not None
    return {
        "records": before,
        "threaded": me.new_records(),
        "names": [group.group_name for group in made],
        "groups": {group.name: group._asdict() for group in me.view.groups().values()},
    }


def forks(me: Rank) -> dict[str, Any]:
    """A child made by fork uses a group of its own and must leave the parent's black box alone."""
    assert me.view is not None
    dist.all_reduce(torch.ones(1))
    records = me.new_records()
    before = bytes(me.view.raw)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            # A backend without threads: gloo's own do not survive a fork.
            lonely = dist.ProcessGroup(dist.HashStore(), 0, 1)
            custom = dist.ProcessGroup.BackendType.CUSTOM
            lonely._register_backend(torch.device("cpu"), custom, FakeProcessGroup._create_internal(0, 1))
            lonely._set_default_backend(custom)
            lonely._set_group_name("lonely")
            lonely.allreduce([torch.ones(1)]).wait()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    untouched = bytes(me.view.raw) == before
    dist.all_reduce(torch.ones(1))
    return {
        "child": os.waitstatus_to_exitcode(status),
        "untouched": untouched,
        "records": records + me.new_records(),
    }


def failure(me: Rank) -> dict[str, Any]:
    """Operations that raise: at once, and later on the backend's thread."""
    messages = []
    for run in (
        lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND),
        lambda: dist.group.WORLD.allreduce([torch.ones(2), torch.ones(3)]),
    ):
        try:
            run()
            messages.append("")
        except RuntimeError as error:
            messages.append(str(error).splitlines()[0])
    dist.all_reduce(torch.ones(2))
    return {"messages": messages, "records": me.new_records()}
