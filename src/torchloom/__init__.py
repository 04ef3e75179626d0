"""torchloom: watch and steer distributed PyTorch training while it runs.

A training script needs none of this; with it, it tells what cannot be guessed:

    import torchloom as loom

    for n, batch in enumerate(loader):
        loss = train(batch)
        loom.step(n, total=len(loader))
        loom.log(loss=loss)
    with loom.phase("eval"):
        evaluate()

The same script runs unchanged without torchloom around it. Importing this imports neither torch nor any part
of the control plane.
"""

from torchloom.probe.api import Info, attach, info, log, phase, step

__version__ = "0.1.0"

__all__ = ["Info", "__version__", "attach", "info", "log", "phase", "step"]
