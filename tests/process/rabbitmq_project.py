"""A project whose queue is in RabbitMQ and whose effects are in a database."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from jfast_sync.config import load_config
from jfast_sync.core import JFast
from jfast_sync.tasks.registry import Registry
from tests.process.project import _TEMPLATE, Project, _toml
from tests.process.store import EFFECTS, ONCE, Store
from tests.waiting import eventually


class RabbitProject(Project):
    """As `Project`; the workers reach the broker by `url`, this process by `enqueue_url` (no fault is made there).

    A broker does not list what it holds: a job is over when its effect or its dead letter is there.
    """

    def __init__(self, folder: Path, dsn: str, url: str, *, enqueue_url: str | None = None, **queue: object) -> None:
        self.folder = folder
        shutil.copytree(_TEMPLATE, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        options = {"backend": "rabbitmq", "rabbitmq_url": url, **queue}
        lines = ["[plugin.database]", f'dsn = "{dsn}"', "[plugin.queue]"]
        lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        (folder / "jfast.toml").write_text("\n".join(lines) + "\n")
        self.store = Store(dsn)
        config = load_config(folder, overrides={"queue": {"rabbitmq_url": enqueue_url or url}})
        self.jfast = JFast(config, tasks=Registry())
        self.jfast.setup()
        self.store.execute(EFFECTS)
        self.store.execute(ONCE)
        self._workers = []

    def wait_for_effects(self, job_ids: list[str], timeout: float = 60.0) -> None:
        """Wait until every one of these jobs has had its effect."""
        wanted = set(job_ids)
        eventually(
            lambda: len(wanted - set(self.store.effects())),
            timeout, until=lambda left: left == 0, what=f"the effects of {len(wanted)} jobs", interval=0.05,
        )  # fmt: skip

    def wait_until_empty(self, timeout: float = 30.0) -> None:
        """Wait until the broker has nothing ready and nothing delayed."""
        eventually(
            lambda: (stats := self.jfast.queue.stats()).ready + stats.delayed,
            timeout, until=lambda left: left == 0, what="an empty queue", interval=0.1,
        )  # fmt: skip

    def assert_effects_once(self, job_ids: list[str]) -> None:
        effects: Counter[str] = self.store.effects()
        assert {name: effects[name] for name in job_ids if effects[name] != 1} == {}
