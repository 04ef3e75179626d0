"""Operations on a running job. The protocol the ranks follow is in core/transaction.

driver         events to the job's proposer; what it wants to the outbox, timers and records
operations     the record of every operation
consequences   what an outcome leads to beyond its record
stop, restore, after_rollback    ending, going back, and what follows
settings       types, bounds and names of settings; settings_codec: their JSON
schedule       from which training step on which values hold; schedule_codec: its JSON
overrides      what a change says about a param group's value: hold, scale, own
"""
