"""The members of a process group, without a window of each: of thousands most are never looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.window import GroupPosition, RankWindow


class Members(Mapping[int, tuple[RankWindow, GroupPosition]]):
    """By rank within the group, who it is and where it stands; made when it is asked for."""

    def __init__(self, board: WindowBoard, name: str) -> None:
        self._board = board
        self._group = board.groups.get(name)
        self._of: dict[int, int] = {}
        self.ranks: Sequence[int] = ()
        """Of the job, in the order of the members."""
        self.size, self.timeout_s = 0, 0.0
        if (group := self._group) is not None:
            self._of, self.timeout_s = group.numbered(board.outlines())
            self.ranks, self.size = group.ranks, group.size
            if len(self._of) < len(group.ranks):  # two say that they are the same one
                self.ranks = [group.ranks[member] for member in self._of.values()]

    def __getitem__(self, rank: int) -> tuple[RankWindow, GroupPosition]:
        member = self._of[rank]
        assert self._group is not None
        return self._board.position(self._group, member)

    def __iter__(self) -> Iterator[int]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)

    def not_entered(self, number: int) -> list[int]:
        """Ranks of the job that have not come to this collective of the group."""
        if self._group is None:
            return []
        entered = self._board.entered_in(self._group)
        ranks = self._group.ranks
        return [ranks[member] for member in self._of.values() if entered[member] < number]
