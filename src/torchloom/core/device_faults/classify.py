"""One exit to the class of its cause, if it has to do with a device, a driver, memory or communication.

The driver's word counts first where it blames the hardware: a program that dies of a failing device mostly
says something vaguer. Otherwise the text of the error decides, and the driver's code is added to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from torchloom.core.device_faults.out_of_memory import out_of_memory
from torchloom.core.device_faults.texts import OUT_OF_MEMORY, TEXTS
from torchloom.core.device_faults.xids import meaning_of
from torchloom.model.device_faults import DeviceFault, Xid
from torchloom.model.incidents import ExitReport, Incident

_CONSEQUENCES = (45, 154)
"""Codes that follow another error and say nothing of its cause."""
_HOST_MEMORY = DeviceFault(
    kind="host-out-of-memory",
    blame="host",
    sentence="memory of the host, or of the job's cgroup, ran out",
    advice="Use fewer data-loader workers or less prefetching, or raise the memory limit of the job.",
)
_NOT_AGAIN = "A restart must not use the same device again before that."


def fault_of(incident: Incident) -> DeviceFault | None:
    """The class of an incident's cause; None if it has nothing to do with a device or its surroundings. Of a
    hang only the driver can know: a rank that others wait for has said nothing yet."""
    if incident.culprit is not None and incident.exits:
        report = incident.exits[0]
        if report.rank == incident.culprit and not report.exit.ok and (fault := classify(report)):
            return fault
    blamed = incident.finding.ranks if incident.finding is not None else ()
    xids = _causes([x for one in incident.evidence if one.rank in blamed for x in one.xids])
    return _of_xid(xids[0], also=None) if xids else None


def classify(report: ExitReport) -> DeviceFault | None:
    xids = _causes(report.xids)
    said = _of_texts(_texts(report))
    if xids and _blames_hardware(xids[0]):
        return _of_xid(xids[0], also=said)
    if said is not None:
        return _with_codes(said, xids)
    if report.exit.out_of_memory:
        return _HOST_MEMORY
    return _of_xid(xids[0], also=None) if xids else None


def _causes(xids: Sequence[Xid]) -> list[Xid]:
    """Those that may be the cause, if there are any, and first those that blame the hardware."""
    found = [x for x in xids if x.code not in _CONSEQUENCES] or list(xids)
    return sorted(found, key=lambda x: (not _blames_hardware(x), meaning_of(x.code).harmless))


def _blames_hardware(xid: Xid) -> bool:
    known = meaning_of(xid.code)
    return known.blame == "device" and not known.harmless


def _texts(report: ExitReport) -> list[str]:
    """The exception first; the log only of a process that ended without one, as those of C++ do."""
    end = report.end
    if end is not None and (end.exception or end.message):
        return [f"{end.exception}: {end.message}", end.traceback]
    return ["\n".join(report.log_tail)]


def _of_texts(texts: Iterable[str]) -> DeviceFault | None:
    for text in texts:
        if OUT_OF_MEMORY.search(text):
            return out_of_memory(text)
        for one in TEXTS:
            if one.pattern.search(text):
                return _with_details(one.fault, text)
    return None


def _with_details(fault: DeviceFault, text: str) -> DeviceFault:
    """The operation of a timeout, and NCCL's own last words."""
    details = ""
    if fault.kind == "collective-timeout":
        op, seq = re.search(r"OpType=(\w+)", text), re.search(r"SeqNum=(\d+)", text)
        details = f"{op[1].lower()} #{seq[1]}" if op and seq else ""
    elif fault.kind.startswith("nccl-"):
        last = re.search(r"Last error:\s*\n?\s*([^\n]{1,160})", text)
        details = last[1].strip() if last else ""
    return replace(fault, sentence=f"{fault.sentence} ({details})") if details else fault


def _of_xid(xid: Xid, also: DeviceFault | None) -> DeviceFault:
    known = meaning_of(xid.code)
    where = f" of the GPU at {xid.pci}" if xid.pci else ""
    sentence = f"the driver reported Xid {xid.code}{where}: {known.meaning}"
    if also is not None:
        sentence += f"; the program saw: {also.sentence}"
    advice = f"{known.advice} {_NOT_AGAIN}" if _blames_hardware(xid) else known.advice
    return DeviceFault(kind=f"xid-{xid.code}", blame=known.blame, sentence=sentence, advice=advice)


def _with_codes(fault: DeviceFault, xids: list[Xid]) -> DeviceFault:
    if not xids:
        return fault
    known = meaning_of(xids[0].code)
    blame = known.blame if fault.blame == "unknown" else fault.blame
    said = f"{fault.sentence}; the driver reported Xid {xids[0].code}: {known.meaning}"
    return replace(fault, sentence=said, blame=blame)
