"""Loopback ports for servers that are stopped and started again."""

from __future__ import annotations

import os
import random
import socket

HOST = "127.0.0.1"
# Below Linux's ephemeral range (32768 and up): otherwise an outgoing connection can take the port of a server while
# it is down, and the restart fails.
PORTS = range(20_000, 32_768)

_handed_out: set[int] = set()


def free_port() -> int:
    """A loopback TCP port nobody listens on now, never handed out twice by this process."""
    ours = _share()
    for port in random.sample(ours, len(ours)):
        if port not in _handed_out and can_bind(port):
            _handed_out.add(port)
            return port
    raise OSError(f"no free port from {PORTS.start} to {PORTS.stop - 1}")


def _share() -> range:
    """This process's part of the ports: parallel test processes must not take each other's while a server is down."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    return PORTS[int(worker.removeprefix("gw")) :: int(count)]


def can_bind(port: int) -> bool:
    """Whether a loopback port is free to listen on."""
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
