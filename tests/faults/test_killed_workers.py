"""Workers killed at random moments under load, some of them in the middle of their drain."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults.load import assert_nothing_lost, load

LEASE = 2


def kill_at_random_moments(project, kills, seed):
    """Three workers; again and again one is killed - every second time shortly after a SIGTERM - and replaced."""
    draw = random.Random(seed)
    workers = [project.worker("--threads", "4", "--grace", "2") for _ in range(3)]
    with load(project, seconds=0.02) as running:
        for number in range(kills):
            running.wait_for_more(10)
            # Not a wait for anything: the moment of the kill is what is drawn.
            time.sleep(draw.uniform(0, 0.8))  # the moment that is drawn
            victim = workers.pop(0)
            if number % 2:
                victim.terminate()
                time.sleep(draw.uniform(0, 0.1))  # the moment that is drawn
            victim.kill()
            workers.append(project.worker("--threads", "4", "--grace", "2"))
        running.wait_for_more(10)
    assert_nothing_lost(project, workers, running.stop())


@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.long)])
def test_every_effect_is_there_once(new_project, dsn, kills):
    kill_at_random_moments(new_project(dsn, visibility_timeout=LEASE, max_attempts=50), kills, seed=9)
