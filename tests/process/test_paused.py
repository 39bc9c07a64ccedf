"""A worker that sleeps past its lease (SIGSTOP, a suspended machine) and wakes: the other worker's result stands."""

from __future__ import annotations

import time

from tests.waiting import eventually

LEASE = 2


def let_another_take_it(project, job_id, landmark):
    """Pause the worker at the landmark, have another one take the job over, then wake the first."""
    first = project.worker("--threads", "2")
    project.wait_for(landmark, [job_id])
    first.pause()
    second = project.worker("--threads", "2")
    eventually(lambda: project.starts()[job_id] == 2, 25, what="the second worker's start")
    project.wait_until_done([job_id], 20)
    after = project.store.effects()
    project.open_gate("wake")
    first.resume()
    # The first has found out that it lost: it works again, on another job.
    first.wait_for_log(r"(?i)another worker|no longer|lost", 20)
    second.terminate()
    assert second.wait(10) == 0
    [probe] = project.enqueue("quick")
    project.wait_until_done([probe], 20)
    assert {event.pid for event in project.events("start") if event.job_id == probe} == {first.pid}
    first.terminate()
    assert first.wait(10) == 0
    return first, second, after


def assert_second_stands(project, job_id, second, after):
    assert after == {job_id: 1}
    assert project.store.effects()[job_id] == 1
    pids = project.store.rows(f"SELECT pid FROM effects WHERE job_id = '{job_id}'")
    assert pids == [(second.pid,)]
    assert project.store.job(job_id) is None
    assert project.starts()[job_id] == 2


def test_paused_before_its_first_write(new_project, dsn):
    project = new_project(dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("paused_before_write", {"gate": "wake"})

    _first, second, after = let_another_take_it(project, job, "start")

    assert_second_stands(project, job, second, after)


def test_paused_after_a_write_its_successor_has_to_make_too(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("paused_after_write", {"gate": "wake"})

    _first, second, after = let_another_take_it(project, job, "wrote")

    assert_second_stands(project, job, second, after)


def test_paused_after_its_idempotency_claim(new_project, postgres_dsn):
    project = new_project(postgres_dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("paused_after_claim", {"gate": "wake", "key": "invoice-1"})

    _first, second, after = let_another_take_it(project, job, "start")

    assert_second_stands(project, job, second, after)


def test_a_stopped_writer_holds_a_sqlite_file_and_still_there_is_one_effect(new_project, sqlite_dsn):
    """Nobody can take the file from a stopped process; once it goes on, exactly one effect."""
    project = new_project(sqlite_dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("paused_after_write", {"gate": "wake"})
    first = project.worker("--threads", "2")
    project.wait_for("wrote", [job])
    first.pause()
    second = project.worker("--threads", "2")
    time.sleep(2 * LEASE)  # the pause itself: past the lease, while the second worker waits for the file
    assert project.starts()[job] == 1
    project.open_gate("wake")

    first.resume()

    project.wait_until_done([job], 30)
    project.assert_once([job])
    assert second.running


def test_a_paused_handler_without_session_settles_nothing(new_project, dsn):
    project = new_project(dsn, visibility_timeout=LEASE)
    [job] = project.enqueue("plain", {"gate": "wake"})
    first = project.worker("--threads", "2")
    project.wait_for("start", [job])
    first.pause()
    second = project.worker("--threads", "2")
    project.wait_for("end", [job], 20)
    project.wait_until_done([job])
    project.open_gate("wake")

    first.resume()

    eventually(lambda: len(project.events("end")) == 2, 15, what="the first handler's end")
    first.wait_for_log(r"(?i)another worker|no longer|lost", 15)
    assert project.store.jobs() == []
    assert project.starts()[job] == 2
    assert second.running
