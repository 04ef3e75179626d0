"""Jobs on the simulated accelerator that no rule was written for: `device_unseen.py NOTES CASE [--rank R] …`.

As on_device.py: the fault comes at step --at on rank --rank, in the first generation only, and every step
that has ended is noted as `<pid> <rank> <step>`. CASE is a function below, with `-` for `_`. Each is a job
of its own kind (pipelines, several groups, threads, no optimizer …): the fault is rarely where the rule
looks. What is harmless ends by itself after 20 s. Over 400 lines, because the cases share little.
"""

import argparse
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchloom.chaos import accelerator

parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("case")
parser.add_argument("--at", type=int, default=40)
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--ahead", type=int, default=10)
parser.add_argument("--busy", type=float, default=20)
args = parser.parse_args()
torch.set_num_threads(1)
accelerator.load()
dist.init_process_group("cpu:gloo,loomsim:loomsim")
ME, WORLD = dist.get_rank(), dist.get_world_size()
FIRST_LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and "EXECUTED" not in os.environ
NEXT = (args.rank + 1) % WORLD
HARMLESS_S = 20.0
launched: deque[torch.Event] = deque()
notes = open(args.notes, "a", buffering=1)  # noqa: SIM115  for the life of the program
step = 0


def ones(count: int = 8) -> torch.Tensor:
    return torch.ones(count, device="loomsim")


def tokenize() -> None:
    """Where the host is while its device has nothing to do."""
    time.sleep(10**6)


def is_at(rank: int = args.rank) -> bool:
    """Whether this rank goes wrong in this step."""
    return FIRST_LIFE and rank == ME and step == args.at


def done() -> None:
    """The step has ended on the host, which is not further ahead than --ahead steps."""
    notes.write(f"{os.getpid()} {ME} {step}\n")
    mark = torch.Event("loomsim")
    mark.record()
    launched.append(mark)
    while len(launched) > args.ahead:
        launched.popleft().synchronize()


class Training:
    """Plain DDP."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(torch.nn.Linear(8, 8).to("loomsim"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.001)

    def forward(self) -> torch.Tensor:
        return self.model(torch.ones(4, 8, device="loomsim")).pow(2).mean()

    def backward(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run(self, before: Callable[[], None], busy: Callable[[], float] = lambda: args.busy) -> None:
        """For ever; `before` comes before each step."""
        global step
        while True:
            step += 1
            before()
            loss = self.forward()
            accelerator.busy(busy())
            self.backward(loss)
            done()


def stick_at(*ranks: int) -> Callable[[], None]:
    def before() -> None:
        if any(is_at(rank) for rank in ranks):
            accelerator.stick()

    return before


# -- slow -------------------------------------------------------------------------------------
def _every(nth: int) -> None:
    slow = FIRST_LIFE and args.rank == ME
    Training().run(
        lambda: None, lambda: args.busy * (3 if slow and step > args.at and step % nth == 0 else 1)
    )


def every_fifth() -> None:
    """Every fifth step takes three times as long on one device."""
    _every(5)


def every_seventh() -> None:
    _every(7)


def every_tenth() -> None:
    _every(10)


def slow_data() -> None:
    """The data of one rank come late."""
    samples = _SlowSamples() if FIRST_LIFE and args.rank == ME else _Samples()
    batches = iter(torch.utils.data.DataLoader(samples, batch_size=1))
    Training().run(lambda: (next(batches), None)[1])


def two_slow() -> None:
    """Two devices become slow at once."""
    slow = FIRST_LIFE and ME in (args.rank, NEXT)
    Training().run(lambda: None, lambda: args.busy * (1.6 if slow and step > args.at else 1))


# -- stuck ------------------------------------------------------------------------------------
def two_stuck() -> None:
    """Two devices are stuck in the same step."""
    Training().run(stick_at(args.rank, NEXT))


def stuck_and_loop() -> None:
    """One device is stuck, and the host of another rank never comes."""

    def before() -> None:
        if is_at():
            accelerator.stick()
        if is_at(NEXT):
            tokenize()

    Training().run(before)


def _pipeline(before: Callable[[], None]) -> None:
    """Stages that send activations forward and gradients back, with an optimizer each."""
    global step
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    got, back = ones(), ones()
    while True:
        step += 1
        before()
        for _ in range(2):
            if ME > 0:
                dist.recv(got, ME - 1)
            accelerator.busy(args.busy / 2)
            if ME < WORLD - 1:
                dist.send(got, ME + 1)
        for _ in range(2):
            if ME < WORLD - 1:
                dist.recv(back, ME + 1)
            if ME > 0:
                dist.send(back, ME - 1)
        weight.grad = back.clone()
        optimizer.step()
        done()


def pipeline_stuck() -> None:
    """The device of a pipeline stage is stuck."""
    _pipeline(stick_at(args.rank))


def pipeline_loop() -> None:
    """The host of a pipeline stage never comes."""
    _pipeline(lambda: tokenize() if is_at() else None)


def pipeline_batched() -> None:
    """A ring of batched sends and receives; one device is stuck."""
    global step
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    got = ones()
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        ops = [
            dist.P2POp(dist.isend, ones(), (ME + 1) % WORLD),
            dist.P2POp(dist.irecv, got, (ME - 1) % WORLD),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        weight.grad = got.clone()
        optimizer.step()
        done()


def grid() -> None:
    """Tensor-parallel pairs within data-parallel rows, works of async_op=True that nobody waits for."""
    global step
    pairs = [dist.new_group([first, first + 1]) for first in range(0, WORLD - 1, 2)]
    rows = [dist.new_group(list(range(first, WORLD, 2))) for first in range(min(2, WORLD))]
    pair = pairs[ME // 2] if len(pairs) > ME // 2 else None
    row = rows[ME % 2]
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        if pair is not None:
            dist.all_reduce(ones(), group=pair, async_op=True)
        dist.all_reduce(ones(), group=row, async_op=True)
        weight.grad = ones()
        optimizer.step()
        done()


def dropped() -> None:
    """Works are dropped at once, and the results are never awaited; one device is stuck."""
    global step
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        work = dist.all_reduce(ones(), async_op=True)
        del work
        weight.grad = ones()
        optimizer.step()
        done()


def second_thread() -> None:
    """A thread reduces in a group and on a stream of its own, beside the training; one device is stuck."""
    global step
    aside = dist.new_group()
    training = Training()

    def reduce() -> None:
        torch.accelerator.set_stream(torch.Stream(device="loomsim"))
        while True:
            dist.all_reduce(ones(), group=aside)
            torch.accelerator.current_stream().synchronize()
            time.sleep(0.05)

    threading.Thread(target=reduce, daemon=True).start()
    training.run(stick_at(args.rank))


def other_order() -> None:
    """Two groups, which one rank uses in the other order in one step: each waits for the other."""
    groups = [dist.new_group(), dist.new_group()]

    def before() -> None:
        for group in reversed(groups) if is_at() else groups:
            dist.all_reduce(ones(), group=group)

    Training().run(before)


def barriers() -> None:
    """Each step ends with a barrier on the device; one device is stuck in front of it."""
    global step
    training = Training()
    while True:
        step += 1
        loss = training.forward()
        accelerator.busy(args.busy)
        training.backward(loss)
        if is_at():
            accelerator.stick()
        dist.barrier(device_ids=[0])
        done()


def barrier_left_out() -> None:
    """A rank leaves out the barrier on the device, and reduces."""
    global step
    training = Training()
    while True:
        step += 1
        loss = training.forward()
        accelerator.busy(args.busy)
        training.backward(loss)
        if not is_at():
            dist.barrier(device_ids=[0])
        done()


def empty() -> None:
    """Tensors of no bytes are reduced; one device is stuck."""
    global step
    training = Training()
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        dist.all_reduce(ones(0))
        loss = training.forward()
        accelerator.busy(args.busy)
        training.backward(loss)
        done()


def regroup() -> None:
    """The groups are destroyed and made anew every 15 steps; one device is stuck in a new one."""
    global step
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    group = dist.new_group()
    while True:
        step += 1
        if step % 15 == 0:
            torch.accelerator.synchronize()
            dist.destroy_process_group(group)
            group = dist.new_group()
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        dist.all_reduce(ones(), group=group)
        weight.grad = ones()
        optimizer.step()
        done()


def no_optimizer() -> None:
    """Inference: nothing but collectives; one device is stuck."""
    global step
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        dist.all_gather_into_tensor(ones(8 * WORLD), ones())
        done()


def mixed_host() -> None:
    """Gradients on the device, a count on the host over gloo; one rank's host never comes to the count."""
    training = Training()

    def before() -> None:
        if is_at():
            tokenize()
        dist.all_reduce(torch.ones(1))

    training.run(before)


def mixed_device() -> None:
    """The same with a stuck device: its host waits for its result before it counts."""
    training = Training()

    def before() -> None:
        if is_at():
            accelerator.stick()
        dist.all_reduce(torch.tensor([ones().sum().item()]))

    training.run(before)


def monitored() -> None:
    """A monitored barrier on the host every step, with a limit of 15 s; a device is stuck, its host waits."""
    training = Training()
    group = dist.new_group(backend="gloo")

    def before() -> None:
        if is_at():
            accelerator.stick()
            torch.accelerator.synchronize()
        dist.monitored_barrier(group, timeout=timedelta(seconds=15))

    training.run(before)


def synchronizes() -> None:
    """The host of a stuck device waits for it in synchronize()."""

    def before() -> None:
        if is_at():
            accelerator.stick()
            torch.accelerator.synchronize()

    Training().run(before)


def _optimizer() -> Callable[[], None]:
    """A step of an optimizer whose gradient needs no collective."""
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)

    def make_step() -> None:
        weight.grad = ones()
        optimizer.step()

    return make_step


def _reducing(reduce: Callable[[], None]) -> None:
    """Steps of a kernel and these collectives; one device is stuck in one of the kernels."""
    global step
    make_step = _optimizer()
    while True:
        step += 1
        if is_at():
            accelerator.stick()
        accelerator.busy(args.busy)
        reduce()
        make_step()
        done()


def many_groups() -> None:
    """Fifteen collectives a step in five groups: hundreds of them are outstanding."""
    groups = [dist.new_group() for _ in range(5)]
    _reducing(lambda: [dist.all_reduce(ones(), group=group) for group in groups * 3] and None)


def deep_stuck() -> None:
    """Forty collectives a step, hosts at least 60 steps ahead: the records of those that are outstanding are
    overwritten long before they end."""
    _deep()
    _reducing(_forty)


def deep_loop() -> None:
    """The same, and one host never comes."""
    global step
    _deep()
    make_step = _optimizer()
    while True:
        step += 1
        if is_at():
            tokenize()
        accelerator.busy(args.busy)
        _forty()
        make_step()
        done()


def _deep() -> None:
    accelerator.depth(1 << 20)
    args.ahead = max(args.ahead, 60)


def _forty() -> None:
    for _ in range(40):
        dist.all_reduce(ones())


def sharded() -> None:
    """All-gathers, reduce-scatters and all-to-alls, as FSDP and experts use them."""

    def reduce() -> None:
        dist.all_gather_into_tensor(ones(8 * WORLD), ones())
        dist.all_to_all_single(ones(8 * WORLD), ones(8 * WORLD))
        dist.reduce_scatter_tensor(ones(), ones(8 * WORLD))

    _reducing(reduce)


def rooted() -> None:
    """All reduce to rank 0, which broadcasts."""

    def reduce() -> None:
        tensor = ones()
        dist.reduce(tensor, 0)
        dist.broadcast(tensor, 0)

    _reducing(reduce)


def apart() -> None:
    """Two groups that have nothing to do with each other; one device of one of them is stuck."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    _reducing(lambda: dist.all_reduce(ones(), group=groups[ME // 2]))


def side_stream() -> None:
    """Each step also reduces on a stream and in a group of its own, behind a kernel there, and the main
    stream does not wait for it; one device is stuck on that stream."""
    aside = dist.new_group()
    side = torch.Stream(device="loomsim")

    def before() -> None:
        main = torch.accelerator.current_stream()
        torch.accelerator.set_stream(side)
        if is_at():
            accelerator.stick()
        accelerator.busy(1)
        dist.all_reduce(ones(), group=aside)
        torch.accelerator.set_stream(main)

    Training().run(before)


def dropped_stall() -> None:
    """Communication does not end, and nobody holds the works."""
    global step
    make_step = _optimizer()
    while True:
        step += 1
        if FIRST_LIFE and step == args.at:
            accelerator.stall()
        accelerator.busy(args.busy)
        dist.all_reduce(ones(), async_op=True)
        make_step()
        done()


def captured() -> None:
    """Each fourth step is captured, as a CUDA graph would be; one device is stuck later."""
    training = Training()

    def before() -> None:
        accelerator.capture(step % 4 == 0)
        if is_at():
            accelerator.stick()

    training.run(before)


# -- errors -----------------------------------------------------------------------------------
def remote_error() -> None:
    """A collective fails on one device while the others wait in it."""
    global step
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    while True:
        step += 1
        if is_at():
            accelerator.fail()
        accelerator.busy(args.busy)
        work = dist.all_reduce(ones(), async_op=True)
        torch.accelerator.synchronize()
        work.wait()
        weight.grad = ones()
        optimizer.step()
        done()


def silent_error() -> None:
    """The same where works are kept and nobody looks at them: only the recorder sees the error."""
    global step
    kept: deque[object] = deque(maxlen=64)
    weight = torch.nn.Parameter(ones())
    optimizer = torch.optim.SGD([weight], lr=0.001)
    while True:
        step += 1
        if is_at():
            accelerator.fail(1000)
        accelerator.busy(args.busy)
        kept.append(dist.all_reduce(ones(), async_op=True))
        weight.grad = ones()
        optimizer.step()
        done()


def dropped_error() -> None:
    """Collectives fail on one device, and all works are dropped at once."""
    _failing((args.rank,), 0)


def two_errors() -> None:
    """Collectives of two devices fail from the same one on, and nobody looks."""
    _failing((args.rank, NEXT), 64)


def pair_error() -> None:
    """Sends and receives in a ring fail on one device, and nobody looks."""
    global step
    make_step = _optimizer()
    kept: deque[object] = deque(maxlen=64)
    while True:
        step += 1
        if is_at():
            accelerator.fail(1000)
        accelerator.busy(args.busy)
        kept.append(dist.isend(ones(), (ME + 1) % WORLD))
        kept.append(dist.irecv(ones(), (ME - 1) % WORLD))
        make_step()
        done()


def _failing(ranks: tuple[int, ...], keeps: int) -> None:
    global step
    make_step = _optimizer()
    kept: deque[object] = deque(maxlen=keeps)
    while True:
        step += 1
        if FIRST_LIFE and step == args.at:
            torch.accelerator.synchronize()
            dist.barrier()
            accelerator.fail(10**6 if ME in ranks else 0)
        accelerator.busy(args.busy)
        kept.append(dist.all_reduce(ones(), async_op=True))
        make_step()
        done()


def lost_in_item() -> None:
    """The device falls off the bus while its host waits for it."""

    def before() -> None:
        if is_at():
            threading.Timer(0.5, accelerator.lose).start()
            accelerator.busy(5000)
            ones().sum().item()

    Training().run(before)


def out_of_memory() -> None:
    """CUDA's text of an allocation that failed."""

    def before() -> None:
        if is_at():
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB of "
                "which 12.25 MiB is free. Process 4711 has 60.10 GiB memory in use. Including non-PyTorch "
                "memory, this process has 19.02 GiB memory in use. Of the allocated memory 17.50 GiB is "
                "allocated by PyTorch, and 1.02 GiB is reserved by PyTorch but unallocated."
            )

    Training().run(before)


def becomes_another() -> None:
    """The process of one rank becomes another program, with work on its device."""

    def before() -> None:
        if is_at():
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(10**6)"])

    Training().run(before)


def becomes_sleep() -> None:
    """The same with a program that is no Python."""

    def before() -> None:
        if is_at():
            os.execvp("sleep", ["sleep", "1000000"])

    Training().run(before)


def executes_itself() -> None:
    """One rank executes its own script anew, and wants to join the others."""

    def before() -> None:
        if is_at():
            environment = {**os.environ, "EXECUTED": "1"}
            os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], environment)

    Training().run(before)


# -- harmless ---------------------------------------------------------------------------------
def error_then_pause() -> None:
    """A collective fails on all devices and is made again; later one host pauses."""
    training = Training()

    def before() -> None:
        if FIRST_LIFE and step == args.at - 30:
            torch.accelerator.synchronize()
            dist.barrier()
            accelerator.fail(1)
            work = dist.all_reduce(ones(), async_op=True)
            torch.accelerator.synchronize()
            try:
                work.wait()
            except RuntimeError:
                dist.all_reduce(ones())
        if is_at():
            time.sleep(HARMLESS_S)

    training.run(before)


class _Samples(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(8)


class _SlowSamples(_Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(3 * args.busy / 1000)
        return torch.ones(8)


def forked_workers() -> None:
    """Data workers are forked after the device was used, again and again."""
    training = Training()
    batches = iter(())

    def before() -> None:
        nonlocal batches
        if step % 60 == 1:
            batches = iter(torch.utils.data.DataLoader(_Samples(), batch_size=4, num_workers=1))
        next(batches)

    training.run(before)


def deep_queue() -> None:
    """Kernels of 0.4 s and a host that is as far ahead as it may be."""
    Training().run(lambda: None, lambda: 400.0 if step > args.at else args.busy)


def all_long() -> None:
    """All devices run a kernel of 20 s."""

    def before() -> None:
        if FIRST_LIFE and step == args.at:
            accelerator.busy(1000 * HARMLESS_S)

    Training().run(before)


def saved_by_one() -> None:
    """One rank copies its state from the device and writes it; the others stand in a barrier."""

    def before() -> None:
        if FIRST_LIFE and step == args.at:
            if args.rank == ME:
                until = time.monotonic() + HARMLESS_S
                with open(os.devnull, "wb") as file:
                    while time.monotonic() < until:
                        file.write(bytes(ones(1 << 16).cpu().numpy()))
                        time.sleep(0.5)
            dist.barrier(device_ids=[0])

    Training().run(before)


def tuning() -> None:
    """The first step takes 25 s on all devices (kernels are compiled and chosen)."""

    def before() -> None:
        if FIRST_LIFE and step == 1:
            time.sleep(5)
            accelerator.busy(1000 * HARMLESS_S)

    Training().run(before)


def sleepy_device() -> None:
    """One device stands still for 20 s (clock down, another program on it), then continues."""

    def before() -> None:
        if is_at():
            accelerator.stick()
            threading.Timer(HARMLESS_S, accelerator.release).start()

    Training().run(before)


globals()[args.case.replace("-", "_")]()
