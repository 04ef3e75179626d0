"""torchloom: watch and steer distributed PyTorch training while it runs.

A training script needs none of this; with it, it tells what cannot be guessed:

    import torchloom as loom

    for n, batch in enumerate(loader):
        loss = train(batch)
        loom.step(n, total=len(loader))
        loom.log(loss=loss)
    with loom.phase("eval"):
        evaluate()

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
of the control plane; the names that need torch come when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from torchloom.probe.api import Info, attach, info, log, phase, role, step
from torchloom.probe.declared import handler, setting

if TYPE_CHECKING:
    from torchloom.checkpoint.checkpoint import Checkpoint
    from torchloom.core.retention import KeepRules
    from torchloom.data import ElasticLoader, ScaledRate, ShardedDataset, ShardedLoader, Transforms

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
    "info",
    "log",
    "phase",
    "role",
    "setting",
    "step",
]

_DATA = ("ElasticLoader", "ScaledRate", "ShardedDataset", "ShardedLoader", "Transforms")


def __getattr__(name: str) -> Any:
    if name == "Checkpoint":
        from torchloom.checkpoint import telling
        from torchloom.checkpoint.checkpoint import Checkpoint
        from torchloom.probe.api import tell_checkpoints, training_step

        telling.connect(phase, log, training_step, tell_checkpoints)
        return Checkpoint
    if name == "KeepRules":
        from torchloom.core.retention import KeepRules

        return KeepRules
    if name in _DATA:
        from torchloom import data

        return getattr(data, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
