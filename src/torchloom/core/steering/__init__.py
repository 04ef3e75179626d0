"""Operations on a running job. The protocol the ranks follow is in core/transaction.

driver         events to the job's proposer; what it wants to the outbox, timers and records
operations     the record of every operation
versions       the versions of the settings that people see, from the numbers of operations
shared         changes that all replicas of a torchft job make together
stop, restart, restore, after_rollback    ending, beginning again, going back, and what follows
What can be set, and from which step on it holds, is in core/config.
"""
