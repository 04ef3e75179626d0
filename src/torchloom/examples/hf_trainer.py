"""A tiny language model trained with Hugging Face's Trainer. Nothing is downloaded.

    loom run --nproc-per-node 2 --resume auto hf_trainer.py --output-dir out

There is no torchloom in this script. `loom status` shows step and loss; `loom set JOB lr=1e-4`, `loom pause`,
`loom checkpoint` and `loom stop` work; after a crash training resumes from the newest checkpoint.
"""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Numbers that count upwards, so that there is something to learn."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="hf-out")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--log-every", type=int, default=10)
    parser.add_argument("--schedule", default="linear", help="of the learning rate")
    given = parser.parse_args()

    set_seed(1)
    config = GPT2Config(
        vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=given.output_dir,
        max_steps=given.steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        lr_scheduler_type=given.schedule,
        logging_steps=given.log_every,
        save_steps=given.save_every,
        save_total_limit=3,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=True,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Sentences())
    trainer.train()
    if trainer.is_world_process_zero():
        print(f"ended after step {trainer.state.global_step}", flush=True)


if __name__ == "__main__":
    main()
