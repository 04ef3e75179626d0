"""Mail into real mailboxes, answers out of them: merged, said once, in portions that fit a message."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agent_story import REF, a_host, box

from torchloom.agent.mail import _portions, answers_text, look_at_answers, post_mail, put
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.core.transaction.packing import pack_answers, pack_mail, unpack_answers, unpack_mail
from torchloom.model.effects import PostMail
from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Mail, Phase, Proposal, Said
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Mailbox


def mail(phase: Phase, attempt: int = 1, size: int = 0) -> Mail:
    values = {"lr": 0.1, "text": "x" * size}
    return Mail(phase, Proposal(AttemptId(1, attempt, attempt), Kind.SET, values), 12)


def said(said: Said, attempt: int = 1, rank: int = 0, why: str = "") -> Answer:
    return Answer(AttemptId(1, attempt, attempt), rank, said, 7, why=why)


def version(made: ReadableBox) -> int:
    return made.view.words[blackbox.MAILBOX_AT // 8 + Mailbox.VERSION]


def test_mail_is_merged_and_the_word_moves_only_with_news(tmp_path: Path) -> None:
    made = box(tmp_path / "a.box")
    put(made.view, (mail(Phase.PREPARE),))
    put(made.view, (mail(Phase.PREPARE),))
    assert version(made) == 1
    put(made.view, (mail(Phase.CONFIRM),))
    put(made.view, (mail(Phase.ARM),))
    assert version(made) == 2, "an older phase is no news"
    put(made.view, (mail(Phase.PREPARE, 2),))
    held = unpack_mail(made.view.read_blob(blackbox.MAIL) or b"")
    assert [m.phase for m in held] == [Phase.CONFIRM, Phase.PREPARE]
    made.close()


def test_what_an_agent_left_half_written_is_written_anew(tmp_path: Path) -> None:
    made = box(tmp_path / "a.box")
    made.view.write_blob(blackbox.MAIL, b"[{")
    put(made.view, (mail(Phase.ARM),))
    assert unpack_mail(made.view.read_blob(blackbox.MAIL) or b"") == (mail(Phase.ARM),)
    made.close()


def test_large_mail_pushes_older_mail_out(tmp_path: Path) -> None:
    made = box(tmp_path / "a.box")
    for attempt in range(1, 5):
        put(made.view, (mail(Phase.PREPARE, attempt, size=6000),))
    held = unpack_mail(made.view.read_blob(blackbox.MAIL) or b"")
    assert [m.proposal.attempt.attempt for m in held] == [3, 4]
    made.close()


def test_answers_are_said_once_and_with_the_exit_again(tmp_path: Path) -> None:
    async def story() -> None:
        made = box(tmp_path / "a.box")
        host = a_host(tmp_path, MemoryBus(MemoryHub()), made)
        order = PostMail(
            id="e1-0",
            cause=1,
            reason="r",
            node="a",
            job="j",
            generation=1,
            workers=(REF, WorkerRef("j", 1, 1, 2)),
            mail=pack_mail([mail(Phase.PREPARE)]).decode(),
        )
        post_mail(host, order)
        assert host.mail_came.is_set() and version(made) == 1, "a worker that is not here does not matter"
        assert not look_at_answers(host)
        made.view.write_blob(blackbox.ANSWERS, pack_answers([said(Said.PREPARED), said(Said.ARMED, 2)]))
        assert look_at_answers(host) and host.reporter.waiting == 1
        assert not look_at_answers(host)
        made.view.write_blob(blackbox.ANSWERS, b"nonsense")
        assert not look_at_answers(host)
        news = pack_answers([said(Said.PREPARED), said(Said.APPLIED, 2)])
        made.view.write_blob(blackbox.ANSWERS, news)
        assert look_at_answers(host) and host.reporter.waiting == 2
        assert answers_text(made) == news.decode()
        made.close()
        assert answers_text(made) == ""

    asyncio.run(story())


def test_many_long_answers_are_said_in_portions() -> None:
    answers = [said(Said.UNDONE, rank=rank, why="x" * 8000) for rank in range(100)]
    parts = _portions(answers)
    assert len(parts) > 1 and all(len(part) <= 300_000 for part in parts)
    assert [a for part in parts for a in unpack_answers(part.encode())] == answers
