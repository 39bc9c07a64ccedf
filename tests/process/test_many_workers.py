"""Several processes with several threads each on one queue."""

from __future__ import annotations

from tests.process.rounds import many_workers


def test_every_effect_happens_once(new_project, dsn):
    rate = many_workers(new_project(dsn), jobs=1000, processes=4, threads=4, timeout=60)

    print(f"{rate:.0f} jobs/s")


def test_jobs_enqueued_by_handlers_exist_once(new_project, dsn):
    project = new_project(dsn)
    jobs = project.enqueue("enqueues", count=100)
    project.worker("--threads", "4")
    project.worker("--threads", "4")

    project.wait_until_done(jobs)
    children = [f"{job}-child" for job in jobs]
    project.wait_until_done(children)

    project.assert_once([*jobs, *children])
    assert len(project.store.effects()) == 200


def test_a_failed_attempt_leaves_nothing(new_project, dsn):
    project = new_project(dsn, max_attempts=3, backoff_base=0)
    jobs = project.enqueue("fails", count=10)

    project.drain()

    assert {row.id: (row.status, row.attempts) for row in project.store.jobs()} == dict.fromkeys(jobs, ("dead", 3))
    assert set(project.starts().values()) == {3}
    assert project.store.effects() == {}


def test_one_effect_per_key_however_many_jobs_carry_it(new_project, dsn):
    project = new_project(dsn)
    keys = [f"invoice-{number}" for number in range(50)]
    jobs = []
    for _ in range(3):
        for key in keys:
            jobs += project.enqueue("keyed", {"key": key, "seconds": 0.01})
    workers = [project.worker("--threads", "4") for _ in range(2)]

    project.wait_until_done(jobs)

    effects = project.store.effects()
    assert len(effects) == len(keys)
    assert set(effects.values()) == {1}
    assert [line for worker in workers for line in worker.trouble()] == []


def test_fewer_connections_than_threads(new_project, dsn):
    project = new_project(dsn, pool_size=2)
    jobs = project.enqueue("enqueues", count=50)
    worker = project.worker("--threads", "8")

    children = [f"{job}-child" for job in jobs]
    project.wait_until_done([*jobs, *children])

    project.assert_once([*jobs, *children])
    assert set(project.starts().values()) == {1}
    assert worker.running
