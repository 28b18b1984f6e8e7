"""Mutual TLS 1.3 over a stream, with the standard library's ssl on buffers in memory.

A lock guards the TLS state, which two threads must not use at once; the socket is read and written without it.
"""

from __future__ import annotations

import ssl
import threading
import time

from labkit.elastic.transport.certificates import Certificates
from labkit.elastic.transport.errors import AccessError, PeerLostError
from labkit.elastic.transport.streams import SocketStream

CHUNK_BYTES = 256 * 1024
"""Bytes encrypted or decrypted at a time, while the other direction waits."""


def server_context(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of a listener: TLS 1.3 only, clients without a certificate of the job are refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _filled(context, certificates)


def client_context(certificates: Certificates) -> ssl.SSLContext:
    """Return the context of a client: TLS 1.3 only, the listener's certificate must contain the name of the job."""
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificates)


def _filled(context: ssl.SSLContext, certificates: Certificates) -> ssl.SSLContext:
    certificates.check()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cafile=certificates.authority)
        context.load_cert_chain(certificates.certificate, certificates.key)
    except ssl.SSLError as error:
        raise AccessError(f"{certificates.certificate} and {certificates.key} do not fit together: {error}.") from None
    return context


class TlsStream:
    """A stream whose bytes are encrypted; `handshake` comes first.

    `expected`: on the end that connects: name that the peer's certificate must contain; None on the end that listens.
    """

    passes_files = False

    def __init__(self, stream: SocketStream, context: ssl.SSLContext, *, expected: str | None = None) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=expected is None, server_hostname=expected)
        self._state, self._sending = threading.Lock(), threading.Lock()
        self._scratch = memoryview(bytearray(CHUNK_BYTES))

    def handshake(self, deadline_s: float) -> str:
        """Agree on keys; return the name in the peer's certificate.

        Raise AccessError if the certificate of either end is not accepted; PeerLostError if the peer has not finished
        by the deadline, a time of time.monotonic.
        """
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._await_more()
            except ssl.SSLError as error:
                self._flush()
                raise AccessError(f"the TLS handshake failed: {_plain(error)}.") from None
            if time.monotonic() > deadline_s:
                raise PeerLostError("the peer did not finish the TLS handshake in time.")
        self._flush()
        names = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return str(names[0][1]) if names else ""

    def _await_more(self) -> None:
        try:
            self._take_in()
        except (EOFError, ConnectionResetError, BrokenPipeError):
            raise AccessError("the peer ended the connection during the TLS handshake, without a word.") from None

    def receive(self, view: memoryview) -> int:
        """See Stream."""
        n_got = 0
        while n_got < len(view):
            n_more = self._decrypted(view[n_got:])
            n_got += n_more
            if n_more == 0 and not self._more_came(n_got):
                break
        return n_got

    def _more_came(self, n_got: int) -> bool:
        try:
            return self._take_in() > 0
        except EOFError:
            if n_got:
                return False  # return the bytes before the end; the next call finds the end again
            raise

    def receive_with_files(self, view: memoryview) -> tuple[int, list[int]]:
        """See Stream; TLS carries no files."""
        return self.receive(view), []

    def _decrypted(self, view: memoryview) -> int:
        with self._state:
            try:
                n_got = self._tls.read(min(len(view), CHUNK_BYTES), view)
            except ssl.SSLWantReadError:
                return 0
            except ssl.SSLZeroReturnError:
                raise EOFError from None
            except ssl.SSLError as error:
                raise AccessError(f"the TLS connection broke: {_plain(error)}.") from None
        if not n_got:
            raise EOFError
        return int(n_got)

    def _take_in(self) -> int:
        n_got = self._stream.receive_some(self._scratch)
        if n_got:
            with self._state:
                self._in.write(self._scratch[:n_got])
        return n_got

    def send(self, parts: list[memoryview], *, file: int | None = None) -> None:
        """See Stream; TLS carries no files."""
        if file is not None:
            raise ValueError("TLS carries no open files")
        with self._sending:
            for piece in _pieces(parts):
                with self._state:
                    self._tls.write(piece)
                    encrypted = self._out.read()
                self._stream.send([memoryview(encrypted)])

    def offer(self, parts: list[memoryview]) -> int:  # noqa: ARG002
        """See Stream; nothing is sent at once, because encrypted bytes cannot be taken back."""
        return 0

    def _flush(self) -> None:
        encrypted = self._out.read()
        if encrypted:
            self._stream.send([memoryview(encrypted)])

    def end(self) -> None:
        """See Stream."""
        self._stream.end()

    def abort(self) -> None:
        """See Stream."""
        self._stream.abort()

    def close(self) -> None:
        """See Stream."""
        self._stream.close()


def _pieces(parts: list[memoryview]) -> list[memoryview | bytes]:
    """Cut large parts and join small neighbours, so that TLS records are full."""
    pieces: list[memoryview | bytes] = []
    small: list[memoryview] = []
    for part in parts:
        if len(part) < CHUNK_BYTES // 16:
            small.append(part)
            continue
        pieces += [b"".join(small)] if small else []
        small = []
        pieces += [part[start : start + CHUNK_BYTES] for start in range(0, len(part), CHUNK_BYTES)]
    return [*pieces, b"".join(small)] if small else pieces


def _plain(error: ssl.SSLError) -> str:
    """Return the reason in OpenSSL's words, without the line numbers of its source."""
    return getattr(error, "verify_message", "") or (error.reason or str(error)).replace("_", " ").lower()
