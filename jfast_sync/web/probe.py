"""``/ready`` and ``/live`` where there is no web server: beside a worker, for an orchestrator's probes."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from jfast_sync.errors import UnavailableError
from jfast_sync.redact import error_text
from jfast_sync.web.answers import Answer
from jfast_sync.web.problems import problem

__all__ = ["Probe"]

log = logging.getLogger(__name__)

_CLIENT_SECONDS: Final = 5.0
_ALIVE: Final = Answer(200, {"status": "ok"})


class Probe:
    """An HTTP server in a daemon thread that answers ``GET /ready`` and ``GET /live``, and nothing else.

    ``/ready`` says what :class:`~jfast_sync.web.readiness.Readiness` says; ``/live`` says 200 as long as the process
    answers at all, so that a server which is down does not get every worker restarted.

    Args:
        ready: makes the answer to ``/ready``.
        port: the TCP port; 0 takes a free one, see :attr:`port`.
        host: the address to listen on. All of them by default, because orchestrators ask the container's own
            address, not its loopback.
    """

    def __init__(self, ready: Callable[[], Answer], port: int, *, host: str = "0.0.0.0") -> None:  # noqa: S104 - said above
        self._ready = ready
        self._address = (host, port)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port that is listened on; the one asked for before :meth:`start`."""
        return self._server.server_port if self._server is not None else self._address[1]

    def start(self) -> None:
        """Listen and begin to answer.

        Raises:
            UnavailableError: the address cannot be listened on.
        """
        host, port = self._address
        try:
            self._server = _Server(self._address, self._ready)
        except (OSError, OverflowError) as exc:
            raise UnavailableError(f"cannot serve /ready on {host}:{port}: {exc}; choose another --probe-port") from exc
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="jfast-probe", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop listening; idempotent. Answers under way are left to their threads."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join(_CLIENT_SECONDS)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], ready: Callable[[], Answer]) -> None:
        self.ready = ready
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's own, which asks the name service for this host's name and may wait for it.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the names are the base's
        log.debug("probe: a client went away: %s", error_text(sys.exception() or ConnectionError()))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_SECONDS
    server_version = "jfast-sync"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        match path:
            case "/ready":
                self._send(self.server.ready())
            case "/live":
                self._send(_ALIVE)
            case _:
                self._send(problem(404, "Only /ready and /live are served here.", instance=path))

    def _send(self, answer: Answer) -> None:
        body = answer.encoded()
        self.send_response(answer.status)
        for name, value in (*answer.headers, ("Content-Length", str(len(body))), ("Connection", "close")):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Keep quiet: a probe every few seconds is not news."""
