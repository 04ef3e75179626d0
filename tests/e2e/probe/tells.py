"""Uses the public API with good and odd values; prints what it sees. It runs the same without torchloom."""

import sys

import torch

import torchloom as loom

print(loom.info() is not None, loom.attach())
loom.log(loss=torch.tensor(0.5, requires_grad=True), big=torch.ones(3), far=torch.ones((), device="meta"))
loom.log(nan=float("nan"), odd=object(), text="a" * 1000, none=None, flag=True, many=10**400)
loom.log(broken=type("Broken", (), {"__str__": None, "__float__": None})())
if "numpy" in sys.modules:
    import numpy

    loom.log(np=numpy.float32(1.5), array=numpy.array([2]))
loom.step(41, total=100)
loom.step("not a number")
loom.step(-5)


@loom.phase("warm-up")
def decorated() -> None:
    pass


decorated()
with loom.phase("eval"), loom.phase("inner"):
    pass
if "in phase" in sys.argv:
    loom.phase("é" * 1000).__enter__()
