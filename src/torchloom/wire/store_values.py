"""Values that torchloom keeps in the job's c10d store, each with a proof that a rank of this generation
wrote it.

The store is torch's: whoever reaches its port can list, read, replace and delete what is in it. A value of
ours is therefore sent as `<HMAC-SHA256 over key and text>:<text>`, under a secret that only the ranks of one
generation have (from their black boxes). Anything else found under a key of ours is ignored and counted:
bytes nobody of ours wrote, a value of another key or generation, a value that was cut.

Owns the proof, the secret of this process and the count. It does not talk to the store, and it cannot prove
that a value was *not* deleted or that an older value of the same key was not put back (docs/security.md).
"""

from __future__ import annotations

import hashlib
import hmac

_PROOF_CHARS = hashlib.sha256().digest_size * 2


class StoreValues:
    """How one process writes and reads its values. Without a secret (not under torchloom) they are plain
    text."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret
        self.ignored = 0
        """Values found that no rank of this generation wrote."""
        self.where = ""
        """The key of the first of them."""

    @property
    def proves(self) -> bool:
        return bool(self._secret)

    def pack(self, key: str, text: str) -> str:
        """What to store under `key`."""
        return f"{self._proof(key, text.encode())}:{text}" if self._secret else text

    def unpack(self, key: str, data: bytes | str) -> str | None:
        """The text that a rank of this generation stored under `key`; None, and counted, for anything
        else."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        text: str | None
        if self._secret:
            proof, separator, body = (
                raw[:_PROOF_CHARS],
                raw[_PROOF_CHARS : _PROOF_CHARS + 1],
                raw[_PROOF_CHARS + 1 :],
            )
            ours = separator == b":" and hmac.compare_digest(proof, self._proof(key, body).encode())
            text = body.decode() if ours else None
        else:
            try:
                text = raw.decode()
            except UnicodeDecodeError:
                text = None
        if text is None:
            self.ignored += 1
            self.where = self.where or key
        return text

    def _proof(self, key: str, body: bytes) -> str:
        name = key.encode()
        # The length keeps key and text apart: no other key and text give the same bytes.
        return hmac.new(self._secret, b"%d:%b%b" % (len(name), name, body), hashlib.sha256).hexdigest()


def secret_of_generation(job_secret: bytes, job: str, generation: int) -> str:
    """The secret that the ranks of one generation share, in hexadecimal digits; "" for a job without one."""
    if not job_secret:
        return ""
    return hmac.new(
        job_secret, f"store of {job}, generation {generation}".encode(), hashlib.sha256
    ).hexdigest()


def secret_of_memory(job_secret: bytes, job: str) -> str:
    """The secret with which agents send each other the job's states in memory; the same for its whole life,
    because a later generation reads what an earlier one copied."""
    return hmac.new(job_secret, f"memory of {job}".encode(), hashlib.sha256).hexdigest()


def secret_of_lighthouse(job_secret: bytes, name: str) -> str:
    """What the nodes of a torchft job prove to its lighthouse, and encrypt with; all its replicas were
    submitted with the same secret."""
    if not job_secret:
        return ""
    return hmac.new(job_secret, f"lighthouse of {name}".encode(), hashlib.sha256).hexdigest()


current = StoreValues()
"""Of this process. The probe sets it from the black box, before the script runs."""


def begin(secret: str) -> StoreValues:
    """This process is a rank that shares this secret with the others."""
    global current
    try:
        current = StoreValues(bytes.fromhex(secret))
    except ValueError:  # a damaged box: the others' values cannot be read, which is as without steering
        current = StoreValues(hashlib.sha256(secret.encode()).digest())
    return current
