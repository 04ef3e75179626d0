"""ddp_steps.py as Ray Train runs it. Usage: ray_steps.py NOTES_DIR STORAGE_DIR.

Ray has no launcher for a script that exists: this file is what its user has to write.
"""

import runpy
import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config: dict[str, str]) -> None:
    import torch.distributed as dist

    dist.destroy_process_group()  # the script joins by itself, with the same variables
    sys.argv = ["ddp_steps.py", config["notes"]]
    runpy.run_path(config["script"], run_name="__main__")


if __name__ == "__main__":
    notes, storage = sys.argv[1], sys.argv[2]
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    TorchTrainer(
        train,
        train_loop_config={"notes": notes, "script": str(Path(__file__).with_name("ddp_steps.py"))},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=5)),
    ).fit()
