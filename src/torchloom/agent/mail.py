"""Mail for workers: into their mailboxes as it comes, and their answers to the stream as they appear.

A mailbox is state (core/transaction): what comes twice, late or out of order changes nothing. The black box
persists, so neither an agent's end nor the bus being away loses an answer. Nothing here judges what is said.
"""

from __future__ import annotations

from functools import reduce

from torchloom.agent.host import Host
from torchloom.core.transaction.packing import pack_mail, unpack_mail
from torchloom.errors import BlackBoxDamaged
from torchloom.model.effects import PostMail
from torchloom.model.transaction.messages import Mail, post
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Mailbox, View


def post_mail(host: Host, effect: PostMail) -> None:
    """Merge the mail into the mailboxes of those workers that are here. Of the others the exits are said."""
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
    if blind:
        ranks = ", ".join(map(str, blind))
        raise BlackBoxDamaged(f"rank {ranks} has no black box, so it cannot be told anything")


def put(view: View, mails: tuple[Mail, ...]) -> None:
    """The version word is written last: it makes the worker look."""
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
    """Only agents write here; what cannot be read was left by one that died in the middle of it."""
    try:
        return unpack_mail(view.read_blob(blackbox.MAIL) or b"")
    except ValueError:
        return ()
