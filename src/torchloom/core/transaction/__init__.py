"""One change, all ranks, one step: the transaction as pure state machines. docs/steering.md is its text.

`rank` is the side that runs in the worker, with `attempt` (what it knows, and what the ranks' own store is
asked) and `rank_actions`; `proposer` the side that runs in the weaver, with `waiting` (operations that wait),
`lead` (how far ahead a step is chosen) and `outcome`; `packing` the bytes in between. What travels is in
model/transaction. No module here does I/O, and all need only the standard library, because half of them run
inside training processes.
"""
