"""A tiny regression trained with Lightning. Nothing is downloaded.

    loom run --nproc-per-node 2 --resume auto lightning_fit.py --output-dir out

There is no torchloom in this script. `loom status` shows step, loss and epoch; `loom set JOB lr=0.01`,
`loom pause`, `loom checkpoint` and `loom stop` work; after a crash training resumes from the newest
checkpoint.
"""

from __future__ import annotations

import argparse
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset


class Line(pl.LightningModule):
    """Learns y = 3 x."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="lightning-out")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    given = parser.parse_args()

    pl.seed_everything(1, verbose=False)
    x = torch.randn(2048, 4)
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trainer = pl.Trainer(
        default_root_dir=given.output_dir,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=workers,
        strategy="ddp" if workers > 1 else "auto",
        max_steps=given.steps,
        callbacks=[ModelCheckpoint(every_n_train_steps=given.save_every, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(Line(), DataLoader(TensorDataset(x, 3 * x), batch_size=16, shuffle=True))
    if trainer.is_global_zero:
        print(f"ended after step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
