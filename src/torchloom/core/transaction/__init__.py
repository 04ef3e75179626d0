"""One change, all ranks, one step: the transaction as pure state machines. docs/steering.md is its text.

`messages` is what travels, `decision` what the ranks' own store is asked, `rank` the side that runs in the
worker (with `attempt` and `actions`), `proposer` the side that runs in the weaver (with `state`, `operation`,
`lead` and `outcome`), `packing` the bytes in between. No module here does I/O, and all need only the standard
library, because half of them run inside training processes.
"""
