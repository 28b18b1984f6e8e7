"""Mutual authentication of two ends, before any other frame.

Four frames: hello and a number, challenge and proof, answer and proof, welcome. A proof is an HMAC-SHA256 over both
numbers and the hello, with the job's token as its key. Over a unix socket or TLS, which verify the peer themselves, the
token may be empty.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from labkit.elastic.transport.channel import Peer
from labkit.elastic.transport.errors import AccessError, FrameError, OversizedError, TransportError
from labkit.elastic.transport.frames import (
    ANSWER,
    CHALLENGE,
    HELLO,
    REFUSED,
    WELCOME,
    Head,
    decode_meta,
    encode_meta,
    pack,
)
from labkit.elastic.transport.intake import Intake
from labkit.elastic.transport.streams import Stream
from labkit.elastic.transport.terms import GREETING_LIMITS, Lease

NONCE_BYTES = 32
GREETING_FRAMES = 2
"""Frames that each end has sent when the greeting is done."""


class Greeting:
    """One greeting over a new stream; `proved` is what the stream has verified about the peer."""

    def __init__(self, stream: Stream, intake: Intake, *, token: bytes, proved: str, lease: Lease) -> None:
        self._stream, self._intake, self._token = stream, intake, token
        self._proved, self._lease = proved, lease
        self._sent = 0
        self._transcript = sha256()

    def ask(self, hello: Mapping[str, Any]) -> Peer:
        """Greet as the end that has connected; return the peer.

        Raises
        ------
        AccessError
            If one end refuses the other; the message says which and why.
        """
        mine = {"hello": dict(hello), "nonce": secrets.token_hex(NONCE_BYTES), "lease_s": self._lease.base_s}
        self._say(HELLO, mine)
        self._transcript.update(encode_meta(mine))
        challenge = self._hear(CHALLENGE)
        self._transcript.update(_nonce(challenge))
        self._check_proof(challenge, "listens")
        self._say(ANSWER, {"proof": self._proof("connects")})
        welcome = self._hear(WELCOME)
        return Peer(self._proved, _hello(welcome), _lease_s(welcome))

    def admit(self, hello: Mapping[str, Any], *, judge: Callable[[Peer], None]) -> Peer:
        """Greet as the end that listens; return the peer, unless `judge` raises a TransportError to refuse it.

        A refused peer receives the reason; then the same error is raised here.
        """
        try:
            asked = self._hear(HELLO)
            peer = Peer(self._proved, _hello(asked), _lease_s(asked))
            self._transcript.update(encode_meta(asked))
            nonce = secrets.token_hex(NONCE_BYTES)
            self._transcript.update(nonce.encode())
            self._say(CHALLENGE, {"nonce": nonce, "proof": self._proof("listens")})
            self._check_proof(self._hear(ANSWER), "connects")
            judge(peer)
        except TransportError as error:
            self.refuse(error)
            raise
        self._say(WELCOME, {"hello": dict(hello), "lease_s": self._lease.base_s})
        return peer

    def refuse(self, error: TransportError) -> None:
        """Send the peer the reason of its refusal, if it is still connected."""
        with contextlib.suppress(OSError):
            self._say(REFUSED, {"why": str(error)[:400]})

    def _say(self, kind: int, meta: Mapping[str, Any]) -> None:
        self._sent += 1
        raw = encode_meta(meta)
        if len(raw) > GREETING_LIMITS.meta_bytes:
            raise OversizedError(
                f"a greeting of {len(raw):,} bytes is beyond {GREETING_LIMITS.meta_bytes:,}; say less in `hello`."
            )
        self._stream.send([memoryview(pack(Head(kind, sequence=self._sent), raw))])

    def _hear(self, kind: int) -> dict[str, Any]:
        head, meta = self._next()
        if head.kind == REFUSED:
            raise AccessError(f"the peer refused this end: {meta.get('why', 'it did not say why')}")
        if head.kind != kind:
            raise FrameError(f"a frame of kind {head.kind} came in a greeting; {kind} was expected.")
        return meta

    def _next(self) -> tuple[Head, dict[str, Any]]:
        try:
            head, raw = self._intake.next()
            return head, decode_meta(raw)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            raise AccessError("the peer ended the connection during the greeting, without a word.") from None

    def _proof(self, who: str) -> str:
        return hmac.new(self._token, who.encode() + self._transcript.digest(), sha256).hexdigest()

    def _check_proof(self, meta: Mapping[str, Any], who: str) -> None:
        if not hmac.compare_digest(self._proof(who).encode(), str(meta.get("proof")).encode()):
            raise AccessError(f"the end that {who} does not know the token of this job.")


def _nonce(meta: Mapping[str, Any]) -> bytes:
    nonce = meta.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
        raise FrameError("a challenge came without a number to answer.")
    return nonce.encode()


def _hello(meta: Mapping[str, Any]) -> dict[str, Any]:
    hello = meta.get("hello")
    if not isinstance(hello, dict):
        raise FrameError("a greeting came without a hello.")
    return hello


def _lease_s(meta: Mapping[str, Any]) -> float:
    lease_s = meta.get("lease_s")
    try:
        return Lease(float(lease_s)).base_s  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise FrameError(f"a greeting came with a lease of {lease_s} s.") from None
