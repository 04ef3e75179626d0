"""A plan that is kept from save to save never decides what is saved: the image is the one of a new plan."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from torchloom.checkpoint.state.image import Image, plan
from torchloom.checkpoint.state.planning import Planner
from torchloom.checkpoint.state.region import anonymous
from torchloom.errors import UsageError

Trees = dict[str, Any]


def bytes_of(image: Image) -> bytes:
    region = anonymous(image.size)
    region.tensor.zero_()
    image.copy_into(region)
    return bytes(region.bytes[: image.size])


def exact(planner: Planner, trees: Trees) -> None:
    assert bytes_of(planner.plan(trees)) == bytes_of(plan(trees))


class Live:
    """Tensors of a training, and their state as a script gives it: new containers in every save."""

    def __init__(self) -> None:
        base = torch.arange(64.0)
        self.model: dict[Any, Any] = {
            "weight": torch.randn(300, 300),
            "tied": None,
            "base": base,
            "view": base[8:24],
            "complex": torch.randn(8, 8, dtype=torch.complex64),
            "gaps": torch.randn(20, 20)[:, ::2],
            "parameter": nn.Parameter(torch.randn(3)),
            "ints": torch.arange(12, dtype=torch.int32),
        }
        self.model["tied"] = self.model["weight"]
        self.optimizer: dict[Any, Any] = {
            "state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.randn(300, 300)}},
            "param_groups": [{"lr": 0.1, "params": [0]}],
        }
        self.data: dict[Any, Any] = {"at": 5, "order": torch.arange(9)}

    def trees(self) -> Trees:
        fresh = {"rng": torch.get_rng_state(), "numpy": np.arange(5)}
        state = {number: dict(held) for number, held in self.optimizer["state"].items()}
        return {
            "model": dict(self.model),
            "optimizer": {**self.optimizer, "state": state},
            "data": dict(self.data),
            "loom": fresh,
        }


def primed(live: Live, kept: list[str] | None = None) -> Planner:
    planner = Planner(fresh=("loom",))
    for _ in range(3):
        exact(planner, live.trees())
    assert planner._kept.names == (kept or ["model", "optimizer", "data"])
    return planner


def renew(live: Live) -> None:
    live.model["weight"] = live.model["weight"].clone()


def untie(live: Live) -> None:
    live.model["tied"] = live.model["weight"].clone()


def tie(live: Live) -> None:
    live.model["gaps"] = live.model["weight"]


def no_longer_a_view(live: Live) -> None:
    live.model["view"] = torch.from_numpy(live.model["base"].numpy()[8:24])
    assert live.model["view"].storage_offset() == 0


def rename(live: Live) -> None:
    live.model = {("bias" if key == "ints" else key): value for key, value in live.model.items()}


def empty(live: Live) -> None:
    live.model["ints"] = torch.empty(0, dtype=torch.int32)


def group(live: Live) -> None:
    live.optimizer["param_groups"].append({"lr": 0.2, "params": [1]})
    live.optimizer["state"][1] = {"step": torch.tensor(0.0)}


def change(live: Live, name: str, how: Callable[[torch.Tensor], Any]) -> None:
    live.model[name] = how(live.model[name])


CHANGES: dict[str, Callable[[Live], object]] = {
    "nothing": lambda live: None,
    "values in place": lambda live: live.model["weight"].add_(1),
    "values of what torch copies": lambda live: live.model["gaps"].mul_(2),
    "a plain value": lambda live: live.optimizer["param_groups"][0].update(lr=0.05),
    "other memory": renew,
    "no longer tied": untie,
    "tied": tie,
    "no longer a view": no_longer_a_view,
    "a view of the same memory": lambda live: change(live, "weight", lambda t: t.view(90_000)),
    "fewer rows of the same memory": lambda live: change(live, "weight", lambda t: t[:200]),
    "a parameter that wants no gradient": lambda live: change(
        live, "ints", lambda t: nn.Parameter(t, requires_grad=False)
    ),
    "transposed in the same memory": lambda live: change(live, "weight", lambda t: t.t()),
    "another type in the same memory": lambda live: change(live, "ints", lambda t: t.view(torch.float32)),
    "conjugated": lambda live: change(live, "complex", torch.conj),
    "negated": lambda live: change(live, "complex", lambda t: torch._neg_view(t)),
    "wants a gradient": lambda live: live.model["weight"].requires_grad_(),
    "a result that wants a gradient": lambda live: change(
        live, "weight", lambda t: t.requires_grad_().view_as(t)
    ),
    "a parameter": lambda live: change(live, "weight", nn.Parameter),
    "a frozen parameter": lambda live: live.model["parameter"].requires_grad_(False),
    "renamed": rename,
    "a new one": lambda live: live.model.update(new=torch.zeros(3)),
    "one less": lambda live: live.model.pop("ints"),
    "another order": lambda live: live.model.update(weight=live.model.pop("weight")),
    "a number in its place": lambda live: change(live, "ints", lambda t: 3),
    "a list around it": lambda live: change(live, "ints", lambda t: [t]),
    "an array": lambda live: live.model.update(array=np.arange(3)),
    "an array in its place": lambda live: change(live, "ints", lambda t: t.numpy()),
    "a generator": lambda live: live.data.update(generator=torch.Generator()),
    "quantised": lambda live: change(
        live, "gaps", lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)
    ),
    "empty": empty,
    "a parameter group": group,
    "a number for a key": lambda live: live.optimizer.update(state={True: live.optimizer["state"][0]}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_state_is_the_one_that_is_saved(name: str) -> None:
    live = Live()
    planner = primed(live)
    CHANGES[name](live)
    for _ in range(5):
        exact(planner, live.trees())
        live.model["complex"].add_(1)


def test_what_did_not_change_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live()
    planner = primed(live)
    monkeypatch.setattr(Planner, "_anew", lambda *_: pytest.fail("planned anew"))
    live.model["weight"].add_(1)
    live.optimizer["param_groups"][0]["lr"] = 0.01
    exact(planner, live.trees())


def test_after_a_change_plans_are_kept_again() -> None:
    live = Live()
    planner = primed(live)
    group(live)
    for _ in range(5):
        exact(planner, live.trees())
    assert planner._kept.names == ["model", "optimizer", "data"]


def test_a_tree_that_is_new_in_every_save_does_not_keep_the_ones_before_it_from_being_kept() -> None:
    live = Live()
    planner, held = Planner(fresh=("loom",)), []
    for _ in range(5):
        live.data["order"] = torch.arange(9)
        held.append(live.data["order"])  # so that its memory is not used again
        exact(planner, live.trees())
    assert planner._kept.names == ["model", "optimizer"]


def test_true_is_another_key_than_one() -> None:
    live = Live()
    live.model = {1: torch.ones(3)}
    planner = primed(live)
    live.model = {True: live.model[1]}
    exact(planner, live.trees())


def test_a_key_of_the_kept_plan_that_equals_a_new_one() -> None:
    live = Live()
    live.model = {True: torch.ones(3)}
    planner = Planner(fresh=("loom",))
    for _ in range(3):
        exact(planner, live.trees())
    live.model = {1: live.model[True]}
    exact(planner, live.trees())


def test_a_tensor_that_became_part_of_a_key_is_refused() -> None:
    live = Live()
    live.model = {"a": torch.ones(3)}
    planner = primed(live)
    live.model = {"a": {(live.model["a"], 1): 2}}
    with pytest.raises(UsageError, match="key of a dict"):
        planner.plan(live.trees())


def test_what_cannot_be_saved_is_refused_as_by_a_new_plan() -> None:
    live = Live()
    planner = primed(live)
    for bad in (object(), torch.eye(3).to_sparse()):
        live.model["ints"] = bad
        with pytest.raises(UsageError, match='model\\["ints"\\]'):
            planner.plan(live.trees())
    live.model["ints"] = torch.arange(3)
    exact(planner, live.trees())


@pytest.mark.parametrize("name", ["quantised", "empty", "an array", "an array in its place"])
def test_what_has_other_memory_in_every_save_is_not_kept(name: str) -> None:
    live = Live()
    CHANGES[name](live)
    planner = Planner(fresh=("loom",))
    for _ in range(3):
        exact(planner, live.trees())
    assert not planner._kept.names


def test_a_result_is_no_leaf() -> None:
    live = Live()
    leaf = live.model["ints"] = torch.ones(3, requires_grad=True)
    planner = primed(live)
    live.model["ints"] = leaf.view_as(leaf)
    exact(planner, live.trees())


def test_other_trees() -> None:
    live = Live()
    planner = primed(live)
    for names in (
        ["optimizer", "model", "data", "loom"],
        ["optimizer", "model", "loom"],
        ["model", "loom"],
        ["model", "optimizer", "data", "loom"],
    ):
        trees = live.trees()
        exact(planner, {name: trees[name] for name in names})


def test_a_later_tree_that_shares_memory_with_a_kept_one() -> None:
    live = Live()
    live.data["order"] = torch.arange(9)
    planner, held = Planner(fresh=("loom",)), []
    for _ in range(4):
        live.data["order"] = torch.arange(9)
        held.append(live.data["order"])
        exact(planner, live.trees())
    assert planner._kept.names == ["model", "optimizer"]
    live.data["order"] = live.model["weight"][3:7]
    exact(planner, live.trees())


def test_a_later_tree_that_no_longer_shares_memory_with_one_before() -> None:
    live = Live()
    planner, held = Planner(fresh=("loom",)), []
    for n in range(4):
        live.data = {"order": live.model["weight"][n : n + 3]}
        exact(planner, live.trees())
    live.data = {"order": torch.arange(9)}
    held.append(live.data)
    exact(planner, live.trees())


def test_views_of_a_later_tree_have_runs_of_their_own() -> None:
    live = Live()
    planner, held = Planner(fresh=("loom",)), []
    for _ in range(4):
        base = torch.arange(9)
        held.append(base)
        live.data = {"base": base, "view": base[2:5]}
        exact(planner, live.trees())
    assert planner._kept.names == ["model", "optimizer"]


def test_tied_to_a_kept_tree_by_one_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live()
    planner, held = Planner(fresh=("loom",)), []
    for n in range(5):
        if n == 4:
            monkeypatch.setattr(Planner, "_anew", lambda *_: pytest.fail("planned anew"))
        live.data = {"average": live.model["weight"], "order": torch.arange(9)}
        held.append(live.data)
        exact(planner, live.trees())


def test_tied_across_trees() -> None:
    live = Live()
    live.data["average"] = live.model["weight"]
    planner = primed(live)
    live.data["average"] = live.model["weight"].clone()
    exact(planner, live.trees())
    live.data["order"] = live.model["weight"]
    exact(planner, live.trees())


def test_no_tensor_is_kept_alive() -> None:
    live = Live()
    planner = primed(live)
    weight = weakref.ref(live.model["weight"])
    live.model.clear()
    gc.collect()
    assert weight() is None
    exact(planner, live.trees())


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield DeviceMesh("cpu", list(range(4)))
    dist.destroy_process_group()


@pytest.mark.parametrize("change", ["nothing", "placements", "mesh", "shape", "other memory", "no shard"])
def test_a_shard(mesh: DeviceMesh, change: str) -> None:
    local = torch.randn(8, 8)

    def shard(mesh: DeviceMesh, dim: int = 0, shape: tuple[int, int] = (32, 8)) -> torch.Tensor:
        sizes = {"shape": torch.Size(shape), "stride": (shape[1], 1)} if dim == 0 else {}
        return DTensor.from_local(local, mesh, [Shard(dim)], run_check=False, **sizes)

    live = Live()
    live.model = {"shard": shard(mesh), "twice": shard(mesh)}
    planner = primed(live)
    local.add_(1)
    match change:
        case "placements":
            live.model["twice"] = shard(mesh, 1)
        case "mesh":
            live.model["twice"] = shard(DeviceMesh("cpu", [1, 0, 2, 3]))
        case "shape":
            live.model = {"shard": shard(mesh, shape=(30, 8)), "twice": shard(mesh, shape=(30, 8))}
        case "other memory":
            local = local.clone()
            live.model["twice"] = shard(mesh)
        case "no shard":
            live.model["twice"] = local
    for _ in range(4):
        exact(planner, live.trees())
