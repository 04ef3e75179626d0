"""Which frameworks torchloom joins without a line of code, and by which module it notices them.

A framework is never imported from here. When the script has imported the module on the left, the integration
on the right is imported and its `activate` is called. Lightning finds our callback by itself, through the
entry points of our package; it is here only for `--resume auto`. All calls are guarded by the session;
LOOM_INTEGRATIONS=0 switches them off.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType

ARRIVALS = {
    "transformers.trainer": "torchloom.integrations.transformers",
    "lightning.pytorch.trainer.trainer": "torchloom.integrations.lightning",
    "pytorch_lightning.trainer.trainer": "torchloom.integrations.lightning",
    "accelerate.accelerator": "torchloom.integrations.accelerate",
    "torchtitan.components.checkpoint": "torchloom.integrations.torchtitan",
    "torchtitan.components.checkpointer.dcp": "torchloom.integrations.torchtitan",
    "torchtitan.components.metrics": "torchloom.integrations.torchtitan",
    "torchft.manager": "torchloom.integrations.torchft",
    "torchft.process_group": "torchloom.integrations.torchft",
    "torchft.checkpointing.http_transport": "torchloom.integrations.torchft",
    "torchft.ddp": "torchloom.integrations.torchft",
    "torchft.local_sgd": "torchloom.integrations.torchft",
}
OFF = "LOOM_INTEGRATIONS"


def activation(integration: str) -> Callable[[ModuleType], None]:
    """What to do when its framework has arrived."""

    def activate(arrived: ModuleType) -> None:
        if os.environ.get(OFF) != "0":
            importlib.import_module(integration).activate(arrived)

    return activate
