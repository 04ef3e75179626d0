"""Evidence on request: stacks, the last collectives, logs; and samples over time of ranks under suspicion.

Nobody is sampled unless the weaver asked lately. "Unchanged" is said only of what was seen at every sample:
the stacks of all threads, the main thread's turns on a CPU, I/O, the set of children, and next to no CPU
time. A sign of life is more than that: CPU time, output, I/O, children at work, data that comes in. What
either means is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.logs import files
from torchloom.agent.observe import file_locks, kernel, kernel_waits, stacks, words
from torchloom.agent.processes.exits import activity
from torchloom.model.findings import RankEvidence
from torchloom.model.messages import AskEvidence, EvidenceAnswer
from torchloom.model.windows import WaitsOn
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Progress, WorkerPhase

SAMPLE_EVERY_S = 2.0
WATCHED_FOR_S = 15.0
"""How long a rank is sampled after the last request for it."""
_IDLE_CPU_SHARE = 0.005
"""Watchdog threads of c10d wake up now and then: less than this share of a core is no work."""
_LIVING_CPU_SHARE = 0.02
_STARVED = 0.5
"""A process that wants a core for this part of the time and has none is not stuck: its host holds it up."""
_LIVING_BYTES = 4096
_LIVING_FAULTS = 16
_LIVING_RUNS = 10
"""Between two samples: less than this may be a loop that only looks whether something has come."""
_AT_ONCE = 4
_MOST_CHILDREN = 4
_LOG_LINES = 8


@dataclass
class Sample:
    """What is known of one rank under suspicion."""

    location: str = ""
    unchanged_ns: int = 0
    samples: int = 0
    """For how long, and in how many samples; 0 when no stack could be read."""
    waits_on: WaitsOn = "unknown"
    waits_for: str = ""
    for_lock: bool = False
    """That is a lock on a file."""
    life: str = ""
    quiet_ns: int = 0
    """The newest sign of life, and for how long there was none."""
    debugger: str = ""
    children: tuple[str, ...] = ()
    """Stacks of child processes that run code of the script, while it waits for them."""
    until_s: float = 0.0
    _since_ns: int = 0
    _lived_ns: int = 0
    _print: str = ""
    _printed: int = 0
    _tree: kernel.Tree | None = field(default=None, repr=False)
    _tree_ns: int = 0

    def take(
        self, stack: stacks.Stack | None, tree: kernel.Tree | None, now_ns: int, printed: int = 0
    ) -> None:
        """Compare with the sample before. `printed` is the size of its log."""
        if tree is None:
            self.unchanged_ns = self.samples = self.quiet_ns = 0
            self._tree = None
            return
        before, since_ns = self._tree, self._tree_ns
        wait = kernel_waits.of_process(tree.root)
        self.waits_for, self.for_lock = wait.words, wait.for_lock
        life = (
            ""
            if before is None
            else sign_of_life(before, tree, now_ns - since_ns, wait, printed - self._printed)
        )
        if before is None or life:
            self._lived_ns = now_ns
        self.life = life or self.life
        self.quiet_ns = now_ns - self._lived_ns
        # A stack that could not be read says nothing: what is counted must not have changed meanwhile.
        same = (
            before is not None
            and (stack is None or not self._print or stack.print == self._print)
            and tree.pids == before.pids
            and tree.io_bytes == before.io_bytes
            and tree.main_runs == before.main_runs
            and tree.cpu_ns - before.cpu_ns <= _IDLE_CPU_SHARE * (now_ns - since_ns)
        )
        if not same:
            self._since_ns, self.samples = now_ns, 0
            self.waits_on = "unknown"
        else:
            self.waits_on = kernel_waits.waits_on(tree.pids)
        if stack is None and wait.call == kernel_waits.ENDED:
            self.samples += 1  # there is no stack any more
        elif stack is not None:
            self.samples += 1
            self.location, self.debugger, self._print = stack.location, stack.debugger, stack.print
        elif not same:
            self._print = ""
        self.unchanged_ns = now_ns - self._since_ns if self.samples else 0
        self._tree, self._tree_ns, self._printed = tree, now_ns, printed


def sign_of_life(
    before: kernel.Tree, now: kernel.Tree, ns: int, wait: kernel_waits.KernelWait, printed: int
) -> str:
    """Evidence that the process is working, as a clause; empty if there is none."""
    share = (now.cpu_ns - before.cpu_ns) / max(1, ns)
    starved = min(1.0, (now.run_delay_ns - before.run_delay_ns) / max(1, ns))
    if share >= _LIVING_CPU_SHARE:
        more = len(now.pids) - 1
        whose = f"it and its {more} child process{'es' * (more != 1)} use" if more else "it uses"
        used = f"{whose} {100 * share:.0f} % of a core"
        return f"{used} and wants one for {100 * starved:.0f} % of the time" if starved >= _STARVED else used
    if starved >= _STARVED:
        return f"it wants a core and has none for {100 * starved:.0f} % of the time"
    if printed:
        return "it prints"
    if now.pids != before.pids:
        return "it starts or ends child processes"
    if abs(now.io_bytes - before.io_bytes) >= _LIVING_BYTES:
        return "it reads or writes files"
    if now.major_faults - before.major_faults >= _LIVING_FAULTS:
        return "it reads pages back from a disk (swap)"
    if now.main_runs - before.main_runs >= _LIVING_RUNS and wait.call in kernel_waits.IN_TOUCH:
        return "it receives data"
    return ""


NOTHING = Sample()


class Samples:
    """Keeps the samples of this host's ranks under suspicion."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._watched: dict[WorkerRef, Sample] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def of(self, ref: WorkerRef) -> Sample:
        return self._watched.get(ref, NOTHING)

    async def run(self) -> None:
        """Sample the watched ranks, until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            now_s = time.monotonic()
            for ref, sample in list(self._watched.items()):
                worker = self._host.workers.get(ref)
                if worker is None or worker.ending or sample.until_s < now_s:
                    del self._watched[ref]
                else:
                    await self._look(worker, sample)

    async def _look(self, worker: LocalWorker, sample: Sample) -> stacks.Stack | None:
        async with self._turns:
            stack = await stacks.read(worker.pid)
            tree = kernel.tree(worker.pid)
            child = await self._child(worker, tree)
        sample.take(stack, tree, time.monotonic_ns(), files.size(worker.log))
        if sample.for_lock and (pid := file_locks.holder(worker.pid)):
            who = file_locks.name_of(pid, worker.pid, self._ranks(worker.ref.job))
            sample.waits_for += f", which {who} holds"
        sample.children = child.lines if child is not None else ()
        if child is not None:
            sample.waits_for = f"it waits for its child process, which is in {child.location}"
        return stack

    def _ranks(self, job: str) -> dict[int, int]:
        """By process, the ranks of a job that run on this host."""
        return {w.pid: w.ref.rank for w in self._host.workers.values() if w.ref.job == job and w.pid}

    async def _child(self, worker: LocalWorker, tree: kernel.Tree | None) -> stacks.Stack | None:
        """A data-loader worker that runs code of the script while its parent waits for data; or any child
        while the parent waits for it to end."""
        if tree is None or len(tree.pids) < 2 or worker.box is None or worker.box.closed:
            return None
        in_data = worker.box.progress(Progress.PHASE) == WorkerPhase.DATA_WAIT
        if not in_data and kernel_waits.of_process(worker.pid).call not in ("child", "poll"):
            return None
        for pid in [pid for pid in tree.pids if pid != tree.root][:_MOST_CHILDREN]:
            if (stack := await stacks.read(pid, child=True)) is not None:
                return stack
        return None

    async def gather(self, query: AskEvidence) -> EvidenceAnswer:
        """Everything that is known of these ranks now; those in `suspects` are sampled from now on."""
        found = [w for ref in query.refs if (w := self._host.workers.get(ref)) is not None]
        return EvidenceAnswer(tuple(await asyncio.gather(*(self._of(w, query) for w in found))))

    async def _of(self, worker: LocalWorker, query: AskEvidence) -> RankEvidence:
        suspect = worker.ref.rank in query.suspects
        stack = None
        if suspect:
            sample = self._watched.setdefault(worker.ref, Sample())
            sample.until_s = time.monotonic() + WATCHED_FOR_S
            stack = await self._look(worker, sample) if not sample.samples else await stacks.read(worker.pid)
        elif worker.ref.rank in query.stacks:
            async with self._turns:
                stack = await stacks.read(worker.pid)
        return self._put(worker, stack, query.collectives if suspect else query.others_collectives, suspect)

    def _put(
        self, worker: LocalWorker, stack: stacks.Stack | None, collectives: int, suspect: bool
    ) -> RankEvidence:
        box, now_ns = worker.box, time.monotonic_ns()
        children = self.of(worker.ref).children if suspect else ()
        log = files.tail(worker.log, _LOG_LINES) if suspect else ()
        state = kernel.state_of(worker.pid)
        pci = self._host.devices.pci_of(worker.devices)
        if box is None or box.closed:
            return RankEvidence(rank=worker.ref.rank, node=self._host.node, state=state, log_tail=log)
        name = box.view.read_blob(blackbox.PHASE_NAME) or b""
        groups = box.view.groups()
        return RankEvidence(
            rank=worker.ref.rank,
            node=self._host.node,
            state=state,
            phase=words.phase_name(box.progress(Progress.PHASE), name.decode("utf-8", "replace")),
            steps=box.progress(Progress.STEPS),
            doing=activity(box, now_ns),
            location=stack.location if stack is not None else "",
            stack=(*(stack.lines if stack is not None else ()), *(f"child: {c}" for c in children)),
            gil=stack.gil if stack is not None else "",
            collectives=tuple(words.past(c, groups, now_ns) for c in box.view.collectives(collectives)),
            log_tail=log,
            xids=self._host.kernel_log.of(worker.pid, pci) if suspect and pci else (),
        )
