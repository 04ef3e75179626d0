"""Checkpoints as the agent serves them.

catalogue       answers questions about a job's checkpoints where they are
trainer_catalogue   the same for checkpoints that a framework's own trainer saved
save_reports    what workers report about saves, as events
memory_tiers    gives the shared memory of ended jobs back
"""
