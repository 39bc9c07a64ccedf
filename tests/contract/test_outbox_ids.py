"""One id enqueued again after its job is done: what each path remembers, as the page on idempotency says."""

from __future__ import annotations

import pytest

from jfast_sync.ports import SharesTransaction
from jfast_sync.tasks import TaskSession
from tests.contract.steps import a_job
from tests.contract.test_outbox import Outbox, outbox

__all__ = ["outbox"]


@pytest.mark.parametrize("through", ["queue", "outbox"])
@pytest.mark.parametrize("handler", ["with_session", "without"])
def test_an_id_again_after_its_job_is_done(outbox: Outbox, handler: str, through: str) -> None:
    jf, ran = outbox.jf, []

    @jf.tasks.task("with_session")
    def with_session(payload: dict[str, int], session: TaskSession) -> None:
        ran.append(payload["n"])

    @jf.tasks.task("without")
    def without(payload: dict[str, int]) -> None:
        ran.append(payload["n"])

    for number in (1, 2):
        job = a_job(id="again", task=handler, payload={"n": number})
        if through == "queue":
            jf.queue.enqueue(job)
        else:
            with outbox.session() as session:
                jf.outbox.enqueue(session, job)
            while jf.relaying.run_once():
                pass
        jf.worker(threads=1, drain=True).run()

    beside_the_database = not isinstance(outbox.queue, SharesTransaction)
    remembered = beside_the_database and (through == "outbox" or handler == "with_session")
    assert ran == ([1] if remembered else [1, 2])
