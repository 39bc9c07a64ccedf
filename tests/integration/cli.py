"""Running the real command in a process of its own, on a project made for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from tests.integration import warm

COMMAND = [sys.executable, "-c", "from jfast_sync_cli.main import main; main()"]

TASKS = """
from jfast_sync.tasks import task

@task("shop.hello")
def hello(payload):
    pass

@task("shop.fail", max_attempts=1)
def fail(payload):
    raise ValueError(f"cannot do {payload.get('n')}")
"""


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Project:
    """A folder with a `jfast.toml` and modules; `run` calls the command there."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def config(self, text: str) -> None:
        (self.folder / "jfast.toml").write_text(dedent(text))

    def tasks(self, text: str, module: str = "shop") -> Path:
        file = self.folder / "modules" / module / "tasks.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
        return file

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self._environ(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(
        self, *arguments: str, text: str = "", environ: Mapping[str, str] | None = None, timeout: float = 60
    ) -> Done:
        code, out, err = warm.call(arguments, self.folder, self._environ(environ), text=text, timeout=timeout)
        assert "Traceback" not in err or "--debug" in arguments, err
        return Done(code, out, err)

    def ok(self, *arguments: str, **options: Any) -> Done:
        done = self.run(*arguments, **options)
        assert done.code == 0, done.err
        return done

    def _environ(self, more: Mapping[str, str] | None) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("JFAST_")}
        return {**inherited, **self.environ, **(more or {})}
