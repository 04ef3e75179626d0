"""Hugging Face's Trainer with a LoomCallback that the script itself adds, beside the one of torchloom."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from torchloom.integrations.transformers import LoomCallback

config = GPT2Config(
    vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
)
tokens = torch.arange(8) % 8
rows = [{"input_ids": tokens, "labels": tokens}] * 64


class Counted(LoomCallback):
    def on_step_end(self, args, state, control, **kwargs):
        super().on_step_end(args, state, control, **kwargs)
        if state.global_step == 1:
            ours = [c for c in trainer.callback_handler.callbacks if isinstance(c, LoomCallback)]
            print(f"active: {sum(c._loop is not None for c in ours)} of {len(ours)}", flush=True)


arguments = TrainingArguments(
    sys.argv[1],
    max_steps=8,
    save_steps=4,
    logging_steps=2,
    report_to=[],
    use_cpu=True,
    dataloader_pin_memory=False,
    disable_tqdm=True,
)
trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows, callbacks=[Counted()])
trainer.train()
print(f"ended after step {trainer.state.global_step}", flush=True)
