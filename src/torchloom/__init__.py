"""torchloom: watch and steer distributed PyTorch training while it runs.

A training script needs none of this; with it, it tells what cannot be guessed:

    import torchloom as loom

    for n, batch in enumerate(loader):
        loss = train(batch)
        loom.step(n, total=len(loader))
        loom.log(loss=loss)
    with loom.phase("eval"):
        evaluate()
    print(loom.in_force(optimizer))   # the learning rate that steps use, also while `loom set` holds one

Settings that can be changed while it runs (`loom set JOB dropout=0.2`):

    @loom.handler("dropout", minimum=0.0, below=1.0)
    def set_dropout(p: float = 0.1) -> None: ...

Checkpoints and data that survive restarts and resizes:

    loader = loom.ElasticLoader(dataset, global_batch=256, num_workers=2)
    ckpt = loom.Checkpoint(model=model, optimizer=optimizer, data=loader)
    first = ckpt.restore()
    ...
        ckpt.step(n, loss=loss)

The same script runs unchanged without torchloom around it. Importing this imports neither torch nor any part
of the control plane; names come when they are asked for, because every process of ours imports this package
first, and a command line is started often.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.checkpoint.checkpoint import Checkpoint
    from torchloom.core.retention import KeepRules
    from torchloom.data import ElasticLoader, ScaledRate, ShardedDataset, ShardedLoader, Transforms
    from torchloom.probe.api import Info, attach, in_force, info, log, phase, role, step
    from torchloom.probe.steering.declared import handler, setting

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "ElasticLoader",
    "Info",
    "KeepRules",
    "ScaledRate",
    "ShardedDataset",
    "ShardedLoader",
    "Transforms",
    "__version__",
    "attach",
    "handler",
    "in_force",
    "info",
    "log",
    "phase",
    "role",
    "setting",
    "step",
]

_FROM = {
    "torchloom.checkpoint.checkpoint": ("Checkpoint",),
    "torchloom.core.retention": ("KeepRules",),
    "torchloom.data": ("ElasticLoader", "ScaledRate", "ShardedDataset", "ShardedLoader", "Transforms"),
    "torchloom.probe.api": ("Info", "attach", "in_force", "info", "log", "phase", "role", "step"),
    "torchloom.probe.steering.declared": ("handler", "setting"),
}


def __getattr__(name: str) -> Any:
    source = next((module for module, names in _FROM.items() if name in names), None)
    if source is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Checkpoint":
        from torchloom.checkpoint import reporting
        from torchloom.probe import api

        reporting.connect(
            api.phase, api.log, api.training_step, api.tell_checkpoints, api.is_finite, api.own_values
        )
        reporting.connect_writes(api.script_writes, api.restored_writes)
    found = getattr(import_module(source), name)
    globals()[name] = found  # not asked for again: a script may call it in every step
    return found
