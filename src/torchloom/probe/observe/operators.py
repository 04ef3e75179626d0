"""What the recorders know about each c10d operator: which argument gives its size and which its peer.

One table for the native recorder (its header is generated from this) and the Python fallback. The argument
of the size is chosen so that the number is the same on every rank of a correct program: of a gather the
input, of a scatter the output, because the other side exists on the root only.

This module neither imports torch nor records anything.
"""

from __future__ import annotations

from typing import NamedTuple

from torchloom.wire.blackbox import OPS


class OperatorReading(NamedTuple):
    """How to read one operator's arguments, by the names of torch's schema ("" means: there is none)."""

    name: str
    sized_by: str
    peer_from: str = ""
    paired: bool = False
    """Between two ranks: numbered per peer and direction instead of per group."""
    sends: bool = False
    coalesced: bool = False

    @property
    def code(self) -> int:
        """The OP word of its records."""
        return OPS.index(self.name)


OPERATIONS = (
    OperatorReading("allreduce_", "tensors"),
    OperatorReading("allreduce_coalesced_", "tensors", coalesced=True),
    OperatorReading("broadcast_", "tensors", "root_rank"),
    OperatorReading("reduce_", "tensors", "root_rank"),
    OperatorReading("allgather_", "input_tensors"),
    OperatorReading("_allgather_base_", "input_tensor"),
    OperatorReading("allgather_coalesced_", "input_list", coalesced=True),
    OperatorReading("allgather_into_tensor_coalesced_", "inputs", coalesced=True),
    OperatorReading("reduce_scatter_", "output_tensors"),
    OperatorReading("_reduce_scatter_base_", "output_tensor"),
    OperatorReading("reduce_scatter_tensor_coalesced_", "outputs", coalesced=True),
    OperatorReading("gather_", "input_tensors", "root_rank"),
    OperatorReading("scatter_", "output_tensors", "root_rank"),
    OperatorReading("alltoall_", "input_tensors"),
    OperatorReading("alltoall_base_", "input"),
    OperatorReading("barrier", ""),
    OperatorReading("monitored_barrier_", ""),
    OperatorReading("send", "tensors", "dst", paired=True, sends=True),
    OperatorReading("recv_", "tensors", "src", paired=True),
    OperatorReading("recv_any_source_", "tensors", paired=True),
)
