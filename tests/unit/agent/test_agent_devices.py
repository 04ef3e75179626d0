"""Which GPU a process means, and how cores stand in for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from torchloom.agent.main import _slots
from torchloom.agent.observe.devices import Devices, Gpu, find_uuid, ranges, resolve_visible
from torchloom.agent.observe.sockets import numa_cores
from torchloom.errors import UsageError

A = Gpu("GPU-aaaa1111-0000", "H100")
B = Gpu("GPU-aabb2222-0000", "H100")
C = Gpu("GPU-cccc3333-0000", "H100")
ALL = (A, B, C)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [A, B, C]),
        ("", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("GPU-cccc", [C]),
        ("GPU-aaaa1111-0000,1", [A, B]),
        ("GPU-aa", []),  # two begin like this
        ("0,7,1", [A]),  # an invalid one hides what follows
        ("0,-1,1", [A]),
        ("-1", []),
        ("1,1", []),  # a repeated one hides all
        ("NoDevFiles", []),
        ("MIG-1234", []),
        (7, []),
    ],
)
def test_visible_devices_are_those_of_cuda(value: object, seen: list[Gpu]) -> None:
    assert resolve_visible(value, ALL) == seen


def test_uuids_with_and_without_prefix() -> None:
    assert find_uuid("cccc3333", ALL) is C
    assert find_uuid("GPU-CCCC", ALL) is C
    assert find_uuid("", ALL) is None


def test_a_worker_uses_the_gpu_of_its_local_rank_among_the_visible_ones() -> None:
    devices = Devices("n1", ALL, (0, 1))
    assert [d.device for d in devices.expected(1, {"CUDA_VISIBLE_DEVICES": "2,0"}, None)] == [A.uuid]
    assert devices.expected(0, {"CUDA_VISIBLE_DEVICES": ""}, None) == ()
    assert [d.device for d in devices.all()] == [A.uuid, B.uuid, C.uuid]


def test_what_a_worker_says_goes_before_what_is_expected() -> None:
    devices = Devices("n1", ALL, (0, 1, 2, 3))
    assert devices.told({"kind": "cuda", "visible": "2,0", "index": 0})[0].device == C.uuid
    assert devices.told({"kind": "cuda", "visible": None, "index": 1})[0].device == B.uuid
    assert devices.told({"kind": "cuda", "uuid": "cccc3333-0000"})[0].device == C.uuid
    assert devices.told({"kind": "cuda", "uuid": "GPU-elsewhere"})[0].device == "GPU-elsewhere"
    assert devices.told({"kind": "cuda", "visible": "0", "index": 5}) == ()
    assert devices.told({"kind": "cpu", "cores": [3, 1, 0]})[0].device == "cpu-n1-0-1,3"
    for nonsense in (None, [], {}, {"kind": "cpu", "cores": ["x"]}, {"kind": "cpu", "cores": []}):
        assert devices.told(nonsense) == ()


def test_a_host_without_gpus_is_one_set_of_cores() -> None:
    devices = Devices("n1", (), (0, 1, 2, 3))
    (whole,) = devices.all()
    assert (whole.device, whole.kind, whole.name) == ("cpu-n1-0-3", "cpu", "CPU cores 0-3")
    assert devices.expected(0, {}, None) == (whole,)
    assert devices.expected(0, {}, [2])[0].name == "CPU core 2"


@pytest.mark.parametrize(("cores", "workers"), [(4, 2), (5, 2), (2, 2), (8, 3), (2, 5), (1, 1)])
def test_shares_cover_all_cores_without_overlap_when_there_are_enough(cores: int, workers: int) -> None:
    devices = Devices("n1", (), tuple(range(cores)))
    shares = [devices.share(rank, workers) for rank in range(workers)]
    assert all(shares)
    if cores >= workers:
        assert sorted(core for share in shares for core in share) == list(range(cores))


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([5]) == "5"
    assert ranges([3, 1, 2, 7, 2]) == "1-3,7"


def test_a_host_offers_places_by_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOM_SLOTS", raising=False)
    gpus = (A, B)
    assert _slots(Devices("n", gpus, tuple(range(96)))) == 2
    assert _slots(Devices("n", (), (0, 1))) == 16
    assert _slots(Devices("n", (), tuple(range(128)))) == 256
    monkeypatch.setenv("LOOM_SLOTS", "5")
    assert _slots(Devices("n", gpus, (0, 1))) == 5


M = Gpu("MIG-0f0f", "H100 MIG 1g.10gb")
N = Gpu("MIG-1e1e", "H100 MIG 1g.10gb")


def test_ranks_see_the_gpus_that_were_chosen_for_them() -> None:
    devices = Devices("n1", ALL, (0, 1))
    chosen = [C.uuid, A.uuid]
    assert [devices.visible(None, chosen, rank, ()) for rank in range(2)] == [f"{C.uuid},{A.uuid}"] * 2
    shared = [A.uuid, B.uuid, A.uuid, B.uuid]
    assert devices.visible(None, shared, 2, ()) == f"{A.uuid},{B.uuid}", "a repeated one would hide all"
    assert devices.expected(2, {"CUDA_VISIBLE_DEVICES": f"{A.uuid},{B.uuid}"}, None)[0].device == A.uuid
    assert devices.visible(None, [""], 0, ()) is None
    assert devices.visible(None, ["GPU-elsewhere"], 0, ()) is None
    assert Devices("n1", (), (0,)).visible(None, [A.uuid], 0, ()) is None


def test_the_job_s_own_list_is_kept_but_for_what_is_out_of_use() -> None:
    devices = Devices("n1", ALL, (0, 1))
    assert devices.visible("2,0", [B.uuid], 0, ()) is None
    assert devices.visible("2,0", [B.uuid], 0, [C.uuid]) == A.uuid
    with pytest.raises(UsageError, match="names only devices that are out of use"):
        devices.visible("2", [B.uuid], 0, [C.uuid])


def test_a_rank_sees_one_mig_instance() -> None:
    devices = Devices("n1", (M, N), (0,))
    assert [devices.visible(None, [M.uuid, N.uuid], rank, ()) for rank in range(2)] == [M.uuid, N.uuid]
    assert resolve_visible("MIG-1e", (M, N)) == [N]
    env = {"CUDA_VISIBLE_DEVICES": N.uuid}
    assert devices.expected(1, env, None)[0].device == N.uuid


WHOLE = Gpu("GPU-0000", "H100", "0000:01:00")
FIRST = Gpu("MIG-a1b2-0000", "H100 MIG 1g.10gb", "0000:02:00")
SECOND = Gpu("MIG-a1c3-0000", "H100 MIG 1g.10gb", "0000:02:00")
LAST = Gpu("GPU-1111", "H100", "0000:03:00")
DIVIDED = (WHOLE, FIRST, SECOND, LAST)
"""Three GPUs, the second of which is divided."""


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("MIG-a1b2-0000,MIG-a1c3-0000", [FIRST]),  # a process uses one compute instance
        ("MIG-a1c3,MIG-a1b2", [SECOND]),
        ("0,MIG-a1c3", [SECOND]),  # whole GPUs are not enumerated beside an instance
        ("MIG-a1c3,0", [SECOND]),
        ("MIG-a1", []),  # two begin like this
        ("MIG-", []),
        ("GPU-", []),
        ("0", [WHOLE]),
        ("1", [FIRST]),  # a divided GPU: its first instance
        ("2", [LAST]),  # an index counts GPUs, not instances
        ("3", []),
        ("2,0", [LAST, WHOLE]),
        (None, [FIRST]),
        ("GPU-0000,GPU-1111", [WHOLE, LAST]),
        ("gpu-0000", []),
        ("mig-a1b2", []),
        ("9" * 5000, []),
        ("0," + "9" * 5000, [WHOLE]),
        ("²", []),
        ("٢", []),
        ("GPU-" + "0" * 10_000, []),
        ("0\x00", []),
        ("GPU-0000/../GPU-1111", []),
        (",".join(["0"] * 10_000), []),
    ],
)
def test_visible_devices_where_one_gpu_is_divided(value: object, seen: list[Gpu]) -> None:
    assert resolve_visible(value, DIVIDED) == seen


def test_an_id_that_is_the_beginning_of_another_names_itself() -> None:
    one, ten = Gpu("GPU-1", "H100"), Gpu("GPU-10", "H100")
    assert find_uuid("GPU-1", (ten, one)) is one and find_uuid("GPU-10", (one, ten)) is ten
    assert Devices("n", (one, ten), (0,)).visible(None, ["GPU-1"], 0, ()) == "GPU-1"


def test_each_rank_of_a_job_that_lists_several_instances_uses_the_first() -> None:
    """Whoever lists them relies on CUDA, which enumerates one."""
    devices = Devices("n1", DIVIDED, (0,))
    env = {"CUDA_VISIBLE_DEVICES": "MIG-a1b2-0000,MIG-a1c3-0000"}
    assert [devices.expected(rank, env, None)[0].device for rank in range(2)] == [FIRST.uuid] * 2
    assert devices.visible(env["CUDA_VISIBLE_DEVICES"], [], 0, [FIRST.uuid]) == SECOND.uuid
    assert devices.visible(env["CUDA_VISIBLE_DEVICES"], [], 0, [SECOND.uuid]) == FIRST.uuid
    assert devices.visible(env["CUDA_VISIBLE_DEVICES"], [], 0, [LAST.uuid]) is None


def numa(directory: Path, *lists: str) -> Path:
    for index, text in enumerate(lists):
        (directory / f"node{index}").mkdir(parents=True)
        (directory / f"node{index}" / "cpulist").write_text(text + "\n")
    return directory


@pytest.mark.parametrize(
    ("lists", "cores", "found"),
    [
        (("0-3", "4-7"), range(8), ((0, 1, 2, 3), (4, 5, 6, 7))),
        (("0-1,4-5", "2-3,6-7"), range(8), ((0, 1, 4, 5), (2, 3, 6, 7))),
        (("0-3", "4-7"), (1, 2), ((1, 2),)),
        (("0-3", ""), range(4), ((0, 1, 2, 3),)),
        (("0-3",), range(8), (tuple(range(8)),)),
        (("0-3", "garbage"), range(8), (tuple(range(8)),)),
        (("0-9999999999",), (0, 1), ((0, 1),)),
        ((), (0, 1), ((0, 1),)),
        (("0-3", "2-5"), range(6), (tuple(range(6)),)),
    ],
)
def test_cores_by_numa_node(
    tmp_path: Path, lists: tuple[str, ...], cores: Sequence[int], found: tuple[tuple[int, ...], ...]
) -> None:
    assert numa_cores(cores, numa(tmp_path / "node", *lists)) == found


def test_sockets_are_devices_and_one_that_is_out_of_use_gets_no_worker() -> None:
    host = Devices("a", (), tuple(range(8)), ((0, 1, 2, 3), (4, 5, 6, 7)))
    assert [use.device for use in host.all()] == ["cpu-a-0-3", "cpu-a-4-7"]
    assert [use.device for use in host.expected(0, {}, None)] == ["cpu-a-0-3", "cpu-a-4-7"]
    assert host.pinned(0, 2, (), each=False) is None
    assert host.pinned(0, 2, ("cpu-a-0-3",), each=False) == [4, 5, 6, 7]
    assert host.pinned(1, 2, ("cpu-a-0-3",), each=True) == [6, 7]
    assert [use.device for use in host.expected(0, {}, [4, 5, 6, 7])] == ["cpu-a-4-7"]
    assert [use.device for use in host.told({"kind": "cpu", "cores": [2]})] == ["cpu-a-2"]
    assert host.cores_of("cpu-a-4-7") == (4, 5, 6, 7)


def test_a_host_with_gpus_pins_nobody_because_of_a_gpu() -> None:
    host = Devices("a", ALL, tuple(range(4)), ((0, 1), (2, 3)))
    assert host.pinned(0, 1, (A.uuid,), each=False) is None
