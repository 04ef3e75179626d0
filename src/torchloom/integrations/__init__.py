"""Training frameworks: what their own callbacks show is recorded, and their own way to save and stop is used.

training_loop  one training loop under torchloom: steps, metrics, saves, and what somebody asks of it
resume         the checkpoint to resume from, if the job asks for that
transformers   Hugging Face Trainer          lightning    Lightning (both package names)
accelerate     a loop written with Accelerator    torchtitan    its trainer
torchft        quorums, commits, deaths of replicas; lighthouse_news, broken_groups, group_sockets,
               replica_settings, replica_data, replica_waits, sync_rounds: parts

No line of a script changes: under torchloom each switches itself on when the script imports the framework
(probe/frameworks.py; Lightning by its entry point). To add one by hand, use `LoomCallback` of its module.
Without torchloom around it, a callback does nothing. docs/frameworks.md has the table of what works where.
"""
