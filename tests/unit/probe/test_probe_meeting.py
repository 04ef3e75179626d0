"""Ranks that measure each other over real connections, with one among them that fails in every way it can."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from torchloom.core.policy.link_findings import rows
from torchloom.model.transaction.messages import AttemptId, Changed
from torchloom.probe.links.delay_matrix import Links, own_address
from torchloom.probe.steering.registers import Registers, StoreSilent
from torchloom.probe.steering.stopping import Interrupted

ATTEMPT = AttemptId(1, 2, 3)
ENVIRONMENT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


class Noted(Registers):
    """The job's store as a table in this process; torch's takes seconds to import."""

    table: dict[str, str]
    silent = False

    def __init__(self, table: dict[str, str]) -> None:
        super().__init__({})
        self.table = table

    def compare_set(self, key: str, value: str, until_ns: int) -> str:
        if self.silent:
            raise StoreSilent("no answer in time")
        return self.table.setdefault(key, value)

    def look(self, keys: Iterable[str], until_ns: int) -> dict[str, str]:
        return {key: self.table[key] for key in keys if key in self.table}


def unlimited(peer: int) -> int:
    return 0


def measure(
    world: int,
    *,
    instead: dict[int, Callable[[dict[str, str]], None]] | None = None,
    within_s: float = 1.0,
    rate: Callable[[int, int], int] = lambda rank, peer: 0,
) -> dict[int, tuple[Changed, ...]]:
    """What every rank told; `instead` says what a rank does that does not measure."""
    table: dict[str, str] = {}
    told: dict[int, tuple[Changed, ...]] = {}

    def run(rank: int) -> None:
        links = Links(Noted(table), ENVIRONMENT, rank, world, lambda peer: rate(rank, peer))
        told[rank] = links.measure(ATTEMPT, {"within_s": within_s})

    threads = []
    for rank in range(world):
        odd = (instead or {}).get(rank)
        threads.append(threading.Thread(target=odd if odd else run, args=(table,) if odd else (rank,)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def pairs(told: dict[int, tuple[Changed, ...]]) -> set[tuple[int, int]]:
    return {(one.sender, one.receiver) for one in rows(told.values())}


def all_pairs(ranks: Iterable[int]) -> set[tuple[int, int]]:
    return {(a, b) for a in ranks for b in ranks if a != b}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_everybody_meets_everybody(world: int) -> None:
    assert pairs(measure(world, within_s=25.0)) == all_pairs(range(world))


def key(rank: int) -> str:
    return f"loom/1/2.3/links/{rank}"


def says(table: dict[str, str], rank: int, port: int) -> None:
    table[key(rank)] = f'["127.0.0.1", {port}, "{"00" * 16}"]'


def stays_away(table: dict[str, str]) -> None:
    return


def listens_and_says_nothing(table: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        says(table, 2, listener.getsockname()[1])
        time.sleep(1.2)


def is_gone_again(table: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    says(table, 2, port)


def hangs_up_at_once(table: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        says(table, 2, listener.getsockname()[1])
        listener.settimeout(1.0)
        try:
            while True:
                listener.accept()[0].close()
        except TimeoutError:
            pass


@pytest.mark.parametrize("odd", [stays_away, listens_and_says_nothing, is_gone_again, hangs_up_at_once])
def test_one_that_fails_is_left_out_and_holds_nobody_up(odd: Callable[[dict[str, str]], None]) -> None:
    began = time.monotonic()
    told = measure(3, instead={2: odd})
    assert set(told) == {0, 1}, "both came back"
    assert pairs(told) <= all_pairs(range(2)) and time.monotonic() - began < 60


def test_a_stranger_is_not_taken_for_a_rank() -> None:
    def intrude(table: dict[str, str]) -> None:
        while key(1) not in table:
            time.sleep(0.001)
        port = int(table[key(1)].split(",")[1])
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(bytes(20))
            time.sleep(0.5)

    assert (0, 1) not in pairs(measure(2, instead={0: intrude}))


def test_a_store_that_does_not_answer_means_no_matrix_and_a_reason() -> None:
    registers = Noted({})
    registers.silent = True
    told = Links(registers, ENVIRONMENT, 0, 2, unlimited).measure(ATTEMPT, {"within_s": 0.1})
    assert told == (("0>", None, "the job's store: no answer in time"),)


def test_what_a_signal_handler_of_the_script_raises_is_the_scripts() -> None:
    def ring(number: int, frame: object) -> None:
        raise TimeoutError("the script's own alarm")

    before = signal.signal(signal.SIGALRM, ring)
    main, table = threading.get_ident(), dict[str, str]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take_the_call_and_ring() -> None:
            with listener.accept()[0] as caller:
                caller.recv(1)  # from here on it waits for an answer that does not come
                signal.pthread_kill(main, signal.SIGALRM)
                done.wait()

        done = threading.Event()
        other = threading.Thread(target=take_the_call_and_ring)
        other.start()
        try:
            says(table, 1, listener.getsockname()[1])
            with pytest.raises(Interrupted) as passed:
                Links(Noted(table), ENVIRONMENT, 0, 2, unlimited).measure(ATTEMPT, {"within_s": 30.0})
        finally:
            done.set()
            other.join()
            signal.signal(signal.SIGALRM, before)
    assert str(passed.value.error) == "the script's own alarm"


def test_what_a_fault_paces_is_slow_here_too() -> None:
    for _ in range(10):  # again where others took the cores: then the other direction is slow for a while too
        told = measure(2, within_s=2.0, rate=lambda rank, peer: 2_000_000 if rank == 1 else 0)
        took = {(one.sender, one.receiver): one.transfer_s for one in rows(told.values())}
        if took.get((1, 0), 0.0) > 5 * took.get((0, 1), 1.0):
            return
    raise AssertionError(took)


def test_nonsense_from_a_rank_is_not_believed() -> None:
    odd: tuple[Changed, ...] = (
        ("0>1", -1, 5),
        ("0>1", 5, "x"),
        ("0>x", 5, 5),
        ("lr", 1, 2),
        ("0>2", True, 5),
        ("0>3", 5, 10**30),
    )
    assert rows([odd]) == ()


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, real = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, port: int, type: int, flags: int = 0) -> object:
        if not flags & socket.AI_NUMERICHOST:
            answered.wait(120)
        return real(host, port, type=type, flags=flags)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    named = {**ENVIRONMENT, "MASTER_ADDR": "localhost"}
    told = Links(Noted({}), named, 0, 2, unlimited).measure(ATTEMPT, {"within_s": 0.2})
    assert told == (("0>", None, "OSError: the address of localhost is not known in time"),)
    answered.set()
    assert own_address(named, time.monotonic_ns() + 120 * 10**9)[1] in ("127.0.0.1", "::1")
