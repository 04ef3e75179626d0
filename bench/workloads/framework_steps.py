"""A tiny model under Hugging Face's Trainer or Lightning that notes the time of every step.

Usage: framework_steps.py NOTES_DIR transformers|lightning. Each process appends `<rank> <step> <ns>`
to NOTES_DIR/<pid>, counting its own steps. Nothing is saved: what is measured is how a process begins.
"""

import os
import sys
import time

notes = open(os.path.join(sys.argv[1], str(os.getpid())), "w", buffering=1)  # noqa: SIM115
rank = os.environ["RANK"]
made = 0


def note() -> None:
    global made
    made += 1
    notes.write(f"{rank} {made} {time.monotonic_ns()}\n")


if sys.argv[2] == "transformers":
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    class Noting(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            note()

    tokens = torch.arange(16)
    rows = [{"input_ids": tokens, "labels": tokens}] * 512
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        sys.argv[1],
        max_steps=10**9,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[Noting()]).train()
else:
    import lightning.pytorch as pl
    import torch

    class Line(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 16)

        def training_step(self, batch, index):
            return self.layer(batch[0]).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def on_train_batch_end(self, outputs, batch, batch_idx):
            note()

    data = torch.utils.data.TensorDataset(torch.ones(4096, 16))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy="ddp",
        max_steps=10**9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(data, batch_size=8))
