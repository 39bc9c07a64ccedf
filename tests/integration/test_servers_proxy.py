"""The proxy's faults look to a client like the faults of a network."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.servers import PostgresServer, Proxy
from tests.servers.network import HOST
from tests.waiting import eventually


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that answers every message with itself."""

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65_536):
                    connection.sendall(data)
            except ConnectionError:
                return  # the proxy cut it: what these tests are about

    def accept() -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    listener = socket.create_server((HOST, 0))
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield int(listener.getsockname()[1])
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


@pytest.fixture
def gate(echo: int, proxy: Callable[[int], Proxy]) -> Proxy:
    """A proxy to the echo server."""
    return proxy(echo)


def _connect(gate: Proxy) -> socket.socket:
    return socket.create_connection((gate.host, gate.port), timeout=5)


def _ask(client: socket.socket, message: bytes) -> bytes:
    client.sendall(message)
    return client.recv(len(message))


def test_it_passes_more_than_its_buffers_hold(gate: Proxy) -> None:
    sent = bytes(range(256)) * 40_000
    with _connect(gate) as client:
        writer = threading.Thread(target=client.sendall, args=(sent,))
        writer.start()
        received = bytearray()
        while len(received) < len(sent):
            received += client.recv(65_536)
        writer.join()
    assert received == sent
    eventually(lambda: gate.connections, until=lambda count: count == 0, what="the closed connection to go")


def test_cut_resets_what_is_open_and_accepts_what_is_new(gate: Proxy) -> None:
    with _connect(gate) as client:
        assert _ask(client, b"one") == b"one"
        gate.cut()
        assert gate.connections == 0
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with _connect(gate) as client:
        assert _ask(client, b"two") == b"two"


def test_refuse_turns_new_connections_away_and_keeps_the_open_ones(gate: Proxy) -> None:
    with _connect(gate) as client:
        assert _ask(client, b"one") == b"one"
        gate.refuse()
        with pytest.raises(ConnectionRefusedError):
            _connect(gate)
        assert _ask(client, b"two") == b"two"
    gate.restore()
    with _connect(gate) as client:
        assert _ask(client, b"three") == b"three"


def test_stall_keeps_old_and_new_connections_silent_until_restored(gate: Proxy) -> None:
    with _connect(gate) as old:
        assert _ask(old, b"one") == b"one"
        gate.stall()
        with _connect(gate) as new:
            eventually(lambda: gate.connections, until=lambda count: count == 2, what="the new connection to be held")
            for client in (old, new):
                client.sendall(b"two")
                client.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    client.recv(1)
                client.settimeout(5)
            gate.restore()
            assert (old.recv(3), new.recv(3)) == (b"two", b"two")


def test_swallow_loses_one_reply_and_no_other(gate: Proxy) -> None:
    with _connect(gate) as client, _connect(gate) as bystander:
        gate.swallow_next_reply(after=b"COMMIT")
        assert _ask(client, b"BEGIN") == b"BEGIN"
        with pytest.raises(ConnectionResetError):
            _ask(client, b"COMMIT")
        assert gate.swallowed == 1
        assert _ask(bystander, b"COMMIT") == b"COMMIT"


def test_restore_takes_back_a_swallow_not_yet_used(gate: Proxy) -> None:
    gate.swallow_next_reply()
    gate.restore()
    with _connect(gate) as client:
        assert _ask(client, b"one") == b"one"
    assert gate.swallowed == 0


def test_a_target_that_is_down_looks_like_a_cut_connection(proxy: Callable[[int], Proxy]) -> None:
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    gate = proxy(port)
    # The reset arrives while the client still connects, or when it first reads.
    with pytest.raises(ConnectionResetError), _connect(gate) as client:
        client.recv(1)


def test_a_swallowed_commit_is_a_commit(
    postgres_server: PostgresServer, postgres_dsn: str, proxy: Callable[[int], Proxy]
) -> None:
    gate = proxy(postgres_server.port)
    with psycopg.connect(gate.dsn(postgres_dsn)) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        gate.swallow_next_reply(after=b"COMMIT")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
