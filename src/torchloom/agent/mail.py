"""Delivers mail to workers' mailboxes, and reports their answers to the stream.

A mailbox is state (core/transaction): mail that arrives twice, late or out of order changes nothing. The
black box persists, so neither a dead agent nor an unreachable bus loses an answer. This module does not
interpret mail or answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from functools import partial, reduce

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.guarded import guarded
from torchloom.core.transaction.packing import pack_answers, pack_mail, unpack_answers, unpack_mail
from torchloom.errors import BlackBoxDamaged
from torchloom.model.effects import PostMail
from torchloom.model.events import RanksAnswered
from torchloom.model.transaction.messages import Answer, Mail, post
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Mailbox, View

log = logging.getLogger(__name__)

LOOK_S = 0.003
"""How often to poll the boxes while answers are expected …"""
LOOK_IDLE_S = 0.25
"""… and otherwise: a rank may have slow steps, or mail from an earlier agent."""
EXPECT_FOR_NS = 5 * 10**9
_MOST_BYTES = 300_000
"""Most bytes of answers in one event; a message may have 1 MiB."""
_numbers = itertools.count(1)


def post_mail(host: Host, effect: PostMail) -> None:
    """Merge the mail into the mailboxes of workers on this host. For the others, exits are reported."""
    mails = unpack_mail(effect.mail.encode())
    blind = []
    for ref in effect.workers:
        worker = host.workers.get(ref)
        if worker is None or worker.ending:
            continue
        if worker.box is None or worker.box.closed:
            blind.append(ref.rank)
        else:
            put(worker.box.view, mails)
    host.mail_ns = time.monotonic_ns()
    host.mail_came.set()
    if blind:
        ranks = ", ".join(map(str, blind))
        raise BlackBoxDamaged(f"rank {ranks} has no black box, so it cannot be reached")


def put(view: View, mails: tuple[Mail, ...]) -> None:
    """Write the version word last: a new version makes the worker read the mail."""
    held = _held(view)
    merged = reduce(post, mails, held)
    if merged == held:
        return
    while len(data := pack_mail(merged)) > blackbox.MAIL.capacity and len(merged) > 1:
        merged = merged[1:]  # of attempts that are over
    view.write_blob(blackbox.MAIL, data)
    at = blackbox.MAILBOX_AT // 8 + Mailbox.VERSION
    view.words[at] = view.words[at] + 1 & blackbox.MASK


def _held(view: View) -> tuple[Mail, ...]:
    """Only agents write here; unreadable content is from an agent that died while writing."""
    try:
        return unpack_mail(view.read_blob(blackbox.MAIL) or b"")
    except ValueError:
        return ()


# -- answers ------------------------------------------------------------------------------------


async def follow_answers(host: Host) -> None:
    """Report the ranks' answers, until cancelled."""
    while True:
        if look_at_answers(host):
            host.mail_ns = time.monotonic_ns()
        if host.mail_ns and time.monotonic_ns() - host.mail_ns < EXPECT_FOR_NS:
            await asyncio.sleep(LOOK_S)
            continue
        host.mail_came.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_IDLE_S):
                await host.mail_came.wait()


def look_at_answers(host: Host) -> bool:
    """Report all new answers, in one event per job if they fit. Returns whether there were any."""
    found: dict[tuple[str, int], list[Answer]] = {}
    for worker in host.running():
        if worker.box is not None and not worker.box.closed:
            news: list[Answer] = guarded(worker, partial(_news, worker, worker.box), [])
            if news:
                found.setdefault((worker.ref.job, worker.ref.generation), []).extend(news)
    for (job, generation), answers in found.items():
        for part in _portions(answers):
            event = RanksAnswered(node=host.node, job=job, generation=generation, answers=part)
            host.reporter.say(event, f"{host.session}.answers.{next(_numbers)}")
    return bool(found)


def _news(worker: LocalWorker, box: ReadableBox) -> list[Answer]:
    version = box.view.blob_version(blackbox.ANSWERS)
    if version == worker.answers_version or version & 1:
        return []
    data = box.view.read_blob(blackbox.ANSWERS)
    if data is None:
        return []
    worker.answers_version = version
    try:
        answers = unpack_answers(data)
    except ValueError as error:
        log.warning("%s rank %d: %s", worker.ref.job, worker.ref.rank, error)
        return []
    fresh = [a for a in answers if a.rank == worker.ref.rank and worker.answers.get(a.attempt) != a]
    worker.answers = {answer.attempt: answer for answer in answers}
    return fresh


def _portions(answers: list[Answer]) -> list[str]:
    text = pack_answers(answers).decode()
    if len(text) <= _MOST_BYTES or len(answers) == 1:
        return [text]
    half = len(answers) // 2
    return _portions(answers[:half]) + _portions(answers[half:])


def answers_text(box: ReadableBox) -> str:
    """All answers a worker had given when it ended."""
    if box.closed:
        return ""
    return (box.view.read_blob(blackbox.ANSWERS) or b"").decode("utf-8", "replace")
