"""The check for what a test leaves behind finds it, and only it."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

import tests.leaks
from tests.leaks import leftover_children, leftover_threads, wait_for_no_connection_to, wait_for_no_open_file
from tests.waiting import eventually


def test_a_thread_that_ends_in_time_is_none_of_its_business() -> None:
    before = threading.enumerate()
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    release.set()
    assert leftover_threads(before) == []


def test_a_thread_that_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.leaks, "GRACE_SECONDS", 0.05)
    before = threading.enumerate()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="forgotten")
    thread.start()
    assert [found.name for found in leftover_threads(before)] == ["forgotten"]
    release.set()
    thread.join()


def test_a_child_that_stays_is_described_and_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    found = leftover_children()
    assert len(found) == 1
    assert f"pid {child.pid} (" in found[0]
    assert "input()" in found[0]
    child.stdin.close()
    child.wait()
    assert leftover_children() == []


def test_a_child_nobody_waited_for_is_told_apart() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    eventually(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, what="its end")
    assert [text for text in leftover_children() if "nobody waited" in text]
    child.wait()


def test_an_open_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.leaks, "GRACE_SECONDS", 0.05)
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (id)")
    with pytest.raises(AssertionError, match=r"x\.db \(dispose every engine"):
        wait_for_no_open_file(path)
    connection.close()
    wait_for_no_open_file(path)


def test_an_open_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests.leaks, "GRACE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), pytest.raises(AssertionError, match="dispose every engine"):
            wait_for_no_connection_to(port)
        wait_for_no_connection_to(port)


def test_waiting_in_vain_shows_the_last_value() -> None:
    values = iter(range(1000))
    with pytest.raises(AssertionError, match=r"waited 0 s for the moon; last value: 0"):
        eventually(lambda: next(values), 0, until=lambda value: value > 999, what="the moon")


def test_waiting_returns_the_value_that_was_waited_for() -> None:
    values = iter(range(10))
    assert eventually(lambda: next(values), until=lambda value: value == 3) == 3
