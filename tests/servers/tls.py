"""TLS in front of a server that may have none: a certificate authority, and a door that speaks TLS."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.network import HOST, free_port

_CHUNK = 65_536


def certificates(folder: Path) -> None:
    """Write `ca.crt`, and `both.crt` with `both.key` for "localhost", good for a server and for a client."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
            "-subj", "/CN=test-ca", "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", "both.key", "-out", "both.csr", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    openssl("x509", "-req", "-in", "both.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", "both.crt", "-days", "2", "-extfile", "names")  # fmt: skip


class TlsDoor:
    """Takes TLS connections from clients with a certificate and forwards what they say to `target` in the clear."""

    def __init__(self, folder: Path, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "both.crt", folder / "both.key")
        self._context.load_verify_locations(folder / "ca.crt")
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server((HOST, self.port))
        self._threads = [threading.Thread(target=self._accept, name="tls-door")]
        self._sockets: list[socket.socket] = [self._listener]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = self._listener.accept()
                try:
                    client = self._context.wrap_socket(raw, server_side=True)
                except (ssl.SSLError, OSError):
                    raw.close()
                    continue
                server = socket.create_connection((HOST, self._target))
                self._sockets += (client, server)
                for source, sink in ((client, server), (server, client)):
                    thread = threading.Thread(target=_pass_on, args=(source, sink), name="tls-door")
                    self._threads.append(thread)
                    thread.start()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)
