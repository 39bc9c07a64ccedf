"""How much a worker takes, and what it gives back."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from jfast_sync.errors import ConfigError
from jfast_sync.job import Job, Lease
from jfast_sync.worker import WorkerOptions
from jfast_sync.worker.slots import MAX_BUFFER, Slots


class Seconds:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(number: int = 0) -> Lease:
    return Lease(job=Job(task="t", max_attempts=3), token=f"token-{number}", claimed_at=datetime.now(UTC))


def leases(count: int) -> list[Lease]:
    return [lease(number) for number in range(count)]


def run_jobs(slots: Slots, clock: Seconds, count: int, seconds: float) -> None:
    """Let `count` jobs pass through, one after the other, `seconds` each."""
    for number in range(count):
        slots.give([lease(number)])
        slots.take()
        clock.now += seconds
        slots.done()


def test_an_idle_worker_takes_one_job_per_thread() -> None:
    slots = Slots(3, clock=Seconds())
    assert (slots.room(0).limit, slots.room(0).idle) == (3, 3)


def test_no_room_while_every_thread_works() -> None:
    slots = Slots(2, clock=Seconds())
    slots.give(leases(2))
    slots.take()
    slots.take()
    assert (slots.room(0).limit, slots.room(0).idle) == (0, 0)
    slots.done()
    assert (slots.room(0).limit, slots.room(0).idle) == (1, 1)


def test_slow_jobs_are_never_buffered() -> None:
    clock = Seconds()
    slots = Slots(1, clock=clock)
    run_jobs(slots, clock, 3, 1.5)
    assert slots.room(0).limit == 1
    slots.give(leases(1))
    slots.take()
    assert slots.room(0).limit == 0


def test_the_buffer_holds_what_is_finished_in_50_ms() -> None:
    clock = Seconds()
    slots = Slots(2, clock=clock)
    run_jobs(slots, clock, 128, 1 / 1024)
    assert slots.room(0).limit == 2 + 51


def test_the_buffer_is_bounded() -> None:
    clock = Seconds()
    slots = Slots(2, clock=clock)
    run_jobs(slots, clock, 10_000, 0.000_01)
    assert slots.room(0).limit == 2 + MAX_BUFFER


def test_a_pace_that_drops_empties_the_buffer() -> None:
    clock = Seconds()
    slots = Slots(1, clock=clock)
    run_jobs(slots, clock, 100, 0.001)
    slots.room(0)
    clock.now += 60
    assert slots.room(0).limit == 1


def test_what_has_waited_200_ms_for_a_thread_goes_back() -> None:
    clock = Seconds()
    slots = Slots(1, clock=clock)
    early, late = lease(1), lease(2)
    slots.give([early])
    clock.now += 0.15
    slots.give([late])
    assert slots.stale() == []
    clock.now += 0.06
    assert slots.stale() == [early]
    assert slots.take() is late


def test_room_is_asked_again_in_time_for_what_gets_stale() -> None:
    clock = Seconds()
    slots = Slots(1, clock=clock)
    slots.give(leases(2))
    slots.take()
    clock.now += 0.2
    assert slots.room(60.0).limit == 0  # does not wait: something has to be given back


def test_closing_returns_what_was_not_started_and_frees_the_threads() -> None:
    slots = Slots(1, clock=Seconds())
    slots.give(leases(2))
    first = slots.take()
    assert first is not None
    assert [back.token for back in slots.close()] == ["token-1"]
    assert slots.take() is None
    refused = leases(1)
    assert slots.give(refused) == refused


def test_a_waiting_thread_ends_when_the_slots_close() -> None:
    slots = Slots(1)
    taken: list[Lease | None] = []
    thread = threading.Thread(target=lambda: taken.append(slots.take()))
    thread.start()
    slots.close()
    thread.join(10)
    assert taken == [None]


def test_no_more_starts_than_allowed_are_given_room() -> None:
    slots = Slots(4, max_starts=5, clock=Seconds())
    assert slots.room(0).limit == 4
    slots.give(leases(4))
    assert slots.room(0).limit == 0
    for _ in range(4):
        slots.take()
        slots.done()
    assert slots.room(0).limit == 1
    slots.give(leases(1))
    assert not slots.spent
    slots.take()
    assert slots.spent
    assert slots.room(0).limit == 0


def test_a_start_that_was_given_back_is_not_spent() -> None:
    clock = Seconds()
    slots = Slots(1, max_starts=1, clock=clock)
    slots.give(leases(1))
    clock.now += 1
    assert len(slots.stale()) == 1
    assert not slots.spent
    assert slots.room(0).limit == 1


def test_lost_leases_leave_the_buffer_in_order() -> None:
    slots = Slots(1, clock=Seconds())
    slots.give(leases(3))
    assert [back.token for back in slots.drop({"token-1", "other"})] == ["token-1"]
    assert [slots.take().token, slots.take().token] == ["token-0", "token-2"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads must be 1 or more"),
        ({"max_jobs": 0}, "max_jobs must be 1 or more"),
        ({"grace": -1.0}, "grace must be zero or more seconds"),
        ({"grace": float("nan")}, "grace must be zero or more seconds"),
        ({"visibility_timeout": 0.0}, "visibility_timeout must be more than 0"),
        ({"claim": "some"}, 'claim must be "all" or "registered"'),
    ],
)
def test_options_out_of_bounds_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WorkerOptions(**options)  # type: ignore[arg-type]


def test_a_lease_that_waited_through_a_pause_is_given_back_not_started() -> None:
    clock = Seconds()
    slots = Slots(1, max_age=20.0, clock=clock)
    old, young = lease(1), lease(2)
    slots.give([old])
    clock.now += 21
    taken: list[Lease | None] = []
    thread = threading.Thread(target=lambda: taken.append(slots.take()))
    thread.start()
    assert slots.room(0).limit == 0
    assert slots.stale() == [old]
    slots.give([young])
    thread.join(10)
    assert taken == [young]
