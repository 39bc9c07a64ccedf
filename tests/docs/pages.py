"""What a page shows, and how a reader would do it.

The conventions of the pages:

- a `python` or `toml` block whose first line is a comment with a path, `# modules/shop/tasks.py`, is that file of the
  page's project; it is written, in the order of the page;
- any other `python` block runs by itself, in an empty folder, and has to end well;
- any other `toml` block is a `jfast.toml` that has to be accepted;
- a line of an `sh` block is a command, run in the page's project, and has to end well;
- a `console` block shows commands behind `$ ` and what they print: each shown line has to be printed, in this order,
  `...` standing for anything; a command may fail where the block says so by showing `exit code N` as its last line;
- `text` is shown only, and so is `sql`, which a test of its own runs on PostgreSQL;
- a block below `<!-- not run: REASON -->` is not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")) if page.is_file()
)
RUN = ("python", "toml", "sh", "console")
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
_NAMED = re.compile(r"# (\S+\.(?:py|toml))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, where it stands, and why it is not run (None: it is)."""

    language: str
    text: str
    where: str
    not_run: str | None = None

    @property
    def file(self) -> str | None:
        """The path the block is saved as, or None."""
        named = _NAMED.match(self.text) if self.language in ("python", "toml") else None
        return named[1] if named else None


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = (ROOT / page).read_text()
    found = []
    for fence in _FENCE.finditer(text):
        indent, language, body = fence.groups()
        reason = _NOT_RUN.search(text[: fence.start()])
        body = re.sub(f"^{indent}", "", body, flags=re.MULTILINE)
        line = text.count("\n", 0, fence.start()) + 1
        found.append(Block(language, body, f"{page}:{line}", reason[1] if reason else None))
    return found


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as somebody would who has just installed the package."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JFAST_", "PYTEST_"))}
    environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", "")])
    return subprocess.run(
        command,
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


class Reader:
    """Follows one page; `said` keeps what each command printed last.

    Args:
        folder: empty; the page's project is made in it.
    """

    def __init__(self, folder: Path) -> None:
        self.project = folder / "project"
        self.project.mkdir()
        self.said: dict[str, str] = {}
        self._folder = folder
        self._apart = 0

    def follow(self, page: str) -> Reader:
        for block in blocks(page):
            if block.not_run is None and block.language in RUN:
                self.do(block)
        return self

    def do(self, block: Block) -> None:
        match block.language:
            case "python" | "toml" if block.file is not None:
                file = self.project / block.file
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(block.text)
            case "python":
                self._python(block)
            case "toml":
                self._toml(block)
            case "sh":
                for command in _commands(block.text):
                    self._command(command, block)
            case "console":
                self._console(block)
            case _:
                raise AssertionError(f"{block.where}: nothing is known of {block.language!r}")

    def _empty(self) -> Path:
        self._apart += 1
        folder = self._folder / f"block-{self._apart}"
        folder.mkdir()
        return folder

    def _python(self, block: Block) -> None:
        folder = self._empty()
        (folder / "main.py").write_text(block.text)
        done = run([sys.executable, "main.py"], folder)
        assert done.returncode == 0, f"{block.where}: {done.stdout}{done.stderr}"

    def _toml(self, block: Block) -> None:
        folder = self._empty()
        (folder / "jfast.toml").write_text(block.text)
        done = run(["jfast-sync", "config", "show"], folder)
        assert done.returncode == 0, f"{block.where}: {done.stdout}{done.stderr}"

    def _command(self, command: str, block: Block, code: int = 0) -> str:
        done = run(["sh", "-eu", "-c", command], self.project)
        printed = done.stdout + done.stderr
        assert done.returncode == code, f"{block.where}: {command}: exit code {done.returncode}\n{printed}"
        self.said[command] = done.stdout
        return printed

    def _console(self, block: Block) -> None:
        for shown in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, *expected = shown.rstrip().splitlines()
            code = 0
            if expected and (said := re.fullmatch(r"exit code (\d+)", expected[-1])):
                code = int(said[1])
                expected.pop()
            printed = iter(self._command(command, block, code).splitlines())
            for line in expected:
                assert any(_fits(line, other) for other in printed), f"{block.where}: {command} does not print {line!r}"


def _commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _fits(shown: str, printed: str) -> bool:
    """Say whether a printed line is the one shown, whatever the spacing and whatever `...` stands for."""
    pattern = re.sub(r"([*?[])", r"[\1]", " ".join(shown.split())).replace("...", "*")
    return fnmatchcase(" ".join(printed.split()), pattern)
