from __future__ import annotations

import pytest

from jfast_sync.tasks.declarations import isolated

with isolated():  # the demo's tasks are not to be known to other tests
    from jfast_sync_cli import demo_tasks as shop
    from jfast_sync_cli.demo_run import plan


@pytest.mark.parametrize("jobs", [10, 11, 40, 999, 1000, 100_000])
def test_the_plan_has_every_kind_and_adds_up(jobs: int) -> None:
    counts = plan(jobs)
    assert sum(counts.values()) == jobs
    assert set(counts) == {shop.CHECKSUM, shop.RECEIPT, shop.WEBHOOK, shop.CHARGE, shop.CONVERT}
    assert all(count > 0 for count in counts.values())
    assert counts[shop.CHARGE] % 2 == 0
