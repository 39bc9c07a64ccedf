"""Waking: the pipe of a claimer, and one notification for many committers."""

from __future__ import annotations

import os
import threading
import time

import pytest

from jfast_sync.queues.sql_wake import Coalesced, Doorbell
from jfast_sync.queues.wake_postgres import channel


def test_a_stop_rung_before_the_wait_ends_it() -> None:
    bell = Doorbell()
    bell.stop_waiting()
    assert bell.wait(30.0, None) is True
    assert bell.wait(0.0, None) is False
    bell.close()


def test_a_look_ends_the_wait_without_stopping() -> None:
    bell = Doorbell()
    bell.look_again()
    started = time.monotonic()
    assert bell.wait(30.0, None) is False
    assert time.monotonic() - started < 5
    bell.close()


def test_ringing_for_ever_never_blocks() -> None:
    bell = Doorbell()
    for _ in range(100_000):
        bell.look_again()
    bell.stop_waiting()  # the pipe is full: it is ringing already
    assert bell.wait(0.0, None) in (True, False)
    bell.close()


def test_closing_twice_closes_nobody_elses_file() -> None:
    bell = Doorbell()
    bell.close()
    reader, writer = os.pipe()  # takes the numbers that have just become free
    bell.close()
    bell.look_again()
    os.write(writer, b"x")
    assert os.read(reader, 1) == b"x"
    os.close(reader)
    os.close(writer)


def test_callers_share_an_action_that_began_after_they_asked() -> None:
    begun, release = threading.Event(), threading.Event()
    runs: list[int] = []

    def action() -> None:
        runs.append(len(runs))
        begun.set()
        assert release.wait(10)

    ring = Coalesced(action)
    first = threading.Thread(target=ring)
    first.start()
    assert begun.wait(10)
    others = [threading.Thread(target=ring) for _ in range(20)]
    for thread in others:
        thread.start()
    assert len(runs) == 1
    release.set()
    for thread in (first, *others):
        thread.join(10)
        assert not thread.is_alive()
    assert 2 <= len(runs) < 21  # those who waited shared; nobody was answered by one that began before they asked


def test_an_action_that_fails_lets_the_next_caller_run() -> None:
    calls: list[int] = []

    def action() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("down")

    ring = Coalesced(action)
    with pytest.raises(OSError, match="down"):
        ring()
    ring()
    assert len(calls) == 2


def test_a_channel_fits_whatever_the_table_is_called() -> None:
    assert len(channel("x" * 200, "y" * 200).encode()) <= 63
    assert channel("a", "b") != channel("b", "a")
