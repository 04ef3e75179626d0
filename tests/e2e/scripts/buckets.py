"""Prints whether DDP's buckets, warmed from a kept order, are those of a model that has trained."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchloom.checkpoint.state import buckets


class Net(nn.Module):
    """Used in another order than it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(300, 300)
        self.first = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def fresh() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Net(), bucket_cap_mb=1)


def layout(model: DistributedDataParallel) -> list[list[int]]:
    numbers = {id(p): n for n, p in enumerate(model.parameters())}
    made = model.reducer._get_zeros_like_grad_buckets()
    return [[numbers[id(p)] for p in bucket.parameters()] for bucket in made]


dist.init_process_group("gloo")
trained = fresh()
assert buckets.arrival_order(trained) is None, "before the first backward nothing is known"
first_layout = layout(trained)
trained(torch.randn(2, 300)).sum().backward()
order = buckets.arrival_order(trained)
assert order is not None
resumed = fresh()
before = [p.detach().clone() for p in resumed.parameters()]
state = torch.get_rng_state()
assert buckets.warm(resumed, order)
assert torch.equal(state, torch.get_rng_state()), "no random number is drawn"
assert all(p.grad is None for p in resumed.parameters()), "no gradient is left"
assert all(torch.equal(p, q) for p, q in zip(resumed.parameters(), before, strict=True))
assert layout(resumed) == layout(trained)
assert layout(resumed) != first_layout, "otherwise this shows nothing"
assert buckets.arrival_order(resumed) == order
assert not buckets.warm(resumed, order[:-1]), "the order of another model is refused"
resumed(torch.randn(2, 300)).sum().backward()
assert layout(resumed) == layout(trained)
if dist.get_rank() == 0:
    print("the same buckets", flush=True)
dist.destroy_process_group()
