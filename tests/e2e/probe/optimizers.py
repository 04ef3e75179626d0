"""Steps optimizers in the way argv[1] names. The test reads the black box to see what was counted."""

import sys
import tempfile

import torch
from torch.optim import SGD, Optimizer


def weight() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return parameter


def plain() -> None:
    optimizer = SGD([weight()], lr=0.1)
    for _ in range(5):
        optimizer.step()


def accumulation() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for micro in range(12):
        model(torch.ones(1, 2)).sum().backward()
        if micro % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def zero() -> None:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer

    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group("gloo", init_method=f"file://{file.name}", rank=0, world_size=1)
        optimizer = ZeroRedundancyOptimizer([weight()], optimizer_class=SGD, lr=0.1)
        for _ in range(4):
            optimizer.step()
        dist.destroy_process_group()


class Louder(SGD):
    """Both classes' step() are hooked, so torch calls the hooks twice with the same optimizer."""

    def step(self, closure: object = None) -> None:
        SGD.step(self, closure)


def nested_in_a_subclass() -> None:
    SGD([weight()], lr=0.1)  # hooks SGD.step itself
    optimizer = Louder([weight()], lr=0.1)
    for _ in range(3):
        optimizer.step()


def two() -> None:
    critic, generator = SGD([weight()], lr=0.1), SGD([weight()], lr=0.2)
    for n in range(10):
        critic.step()
        if n % 5 == 4:
            generator.step()


def grad_scaler() -> None:
    parameter = weight()
    optimizer = SGD([parameter], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for n in range(6):
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * (float("inf") if n % 3 == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()


def lbfgs() -> None:
    parameter = weight()
    optimizer = torch.optim.LBFGS([parameter], max_iter=5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


class Failing(SGD):
    fail = False

    def step(self, closure: object = None) -> None:
        if self.fail:
            raise RuntimeError("out of memory")
        super().step(closure)


def a_step_that_raises() -> None:
    optimizer, inner = Failing([weight()], lr=0.1), SGD([weight()], lr=0.1)
    inner.step()
    for n in range(6):
        optimizer.fail = n in (1, 3)
        try:
            optimizer.step()
        except RuntimeError:
            continue


def anchor_collected() -> None:
    for _ in range(2):
        optimizer = SGD([weight()], lr=0.1)
        optimizer.step()
        optimizer.step()
        del optimizer


def replaced_arguments() -> None:
    optimizer = SGD([weight()], lr=0.1)
    optimizer.register_step_pre_hook(lambda opt, args, kwargs: ((*args,), dict(kwargs)))
    for _ in range(3):
        optimizer.step()


def threads() -> None:
    import threading

    anchor, other = SGD([weight()], lr=0.1), SGD([weight()], lr=0.1)
    anchor.step()

    def work() -> None:
        for _ in range(300):
            other.step()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(300):
        anchor.step()
    thread.join()


def scheduler() -> None:
    """Prints the learning rates as the black box shows them, stepping on until they are new there."""
    import json

    from torchloom.probe import session
    from torchloom.wire.blackbox import HYPERPARAMETERS

    def shown() -> list[float]:
        text = session.current.view.read_blob(HYPERPARAMETERS) if session.current else b""
        return [group["lr"] for group in json.loads(text)["optimizers"][0]["groups"]] if text else []

    optimizer = SGD([{"params": [weight()]}, {"params": [weight()], "lr": torch.tensor(0.25)}], lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before: list[float] = []
    for _ in range(3):
        while shown() == before:
            optimizer.step()
        before = shown()
        print(before)
        schedule.step()


def many_groups() -> None:
    optimizer = SGD([{"params": [weight()], "note": "x" * 190} for _ in range(500)], lr=0.5)
    optimizer.step()


def stop() -> None:
    optimizer = SGD([weight()], lr=0.1)
    try:
        for n in range(10**6):
            optimizer.step()
            print(n + 1, flush=True)
    except Exception:  # noqa: BLE001 – what careful scripts do; a stop must pass it
        print("swallowed")
    finally:
        print("cleaned up")


class Whole(Optimizer):
    """Unlike torch's own, this step() can be one graph: hooks must not break it."""

    def step(self, closure: object = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])


def compiled() -> None:
    optimizer = SGD([weight()], lr=0.1)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for _ in range(4):
        step()
    whole = Whole([weight()], {"lr": 0.1})

    @torch.compile(fullgraph=True, backend="eager")
    def whole_step() -> None:
        whole.step()

    for _ in range(2):
        whole_step()


def compiling() -> None:
    from torchloom.probe import session

    def phase() -> int:
        return session.current.phases.now if session.current else -1

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        print(phase())
        return graph.forward

    for _ in range(2):
        print(phase())
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(1))
        print(phase())
        optimizer = SGD([weight()], lr=0.1)
        torch._dynamo.reset()
        optimizer.step()


def fork() -> None:
    import os

    optimizer: Optimizer = SGD([weight()], lr=0.1)
    optimizer.step()
    child = os.fork()
    if child == 0:
        for _ in range(5):
            optimizer.step()
        return
    os.waitpid(child, 0)
    optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
