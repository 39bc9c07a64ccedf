"""Finding tasks: ``modules/<module>/tasks.py`` or a ``tasks/`` package there, and modules named outright."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from jfast_sync.errors import DeclarationError
from jfast_sync.redact import error_text

__all__ = ["discover", "import_named"]


def discover(folder: Path, imports: Sequence[str] = ()) -> list[str]:
    """Import the modules that declare tasks and return their names, in the order they were imported.

    ``folder`` is put in front of ``sys.path``, so that tasks import their neighbours as ``modules.<module>...``.
    Modules that are imported already stay as they are. Symbolic links and names that begin with ``.`` or ``_`` are
    passed over.

    Args:
        folder: where ``modules/`` is; it need not be there.
        imports: more modules, as ``import`` would name them.

    Raises:
        DeclarationError: one cannot be imported; the message names the file, the line and the error, and chains it.
    """
    folder = folder.resolve()
    _put_first(str(folder))
    importlib.invalidate_caches()
    found = dict(_task_modules(folder / "modules"))
    for name, file in found.items():
        _import_file(name, file, folder)
    for name in imports:
        import_named(name)
    return [*found, *(name for name in imports if name not in found)]


def _put_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]


def _task_modules(modules: Path) -> Iterator[tuple[str, Path]]:
    for home in _folders(modules):
        name = f"modules.{home.name}.tasks"
        file, package = home / "tasks.py", home / "tasks"
        if file.is_file() and package.is_dir() and _python_files(package):
            raise DeclarationError(f"{home} has both tasks.py and a tasks/ package; keep one")
        if file.is_file():
            yield _importable(name, file), file
        elif package.is_dir():
            yield from _package(name, package)


def _package(name: str, package: Path) -> Iterator[tuple[str, Path]]:
    """Yield the package and everything in it: a task in a file that nobody imports would be unknown to the worker."""
    start = package / "__init__.py"
    if start.is_file():
        yield _importable(name, start), start
    for file in _python_files(package):
        yield _importable(f"{name}.{file.stem}", file), file
    for inner in _folders(package):
        yield from _package(f"{name}.{inner.name}", inner)


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    inside = (path for path in parent.iterdir() if path.is_dir() and not path.is_symlink())
    return sorted(path for path in inside if not path.name.startswith((".", "_")))


def _python_files(package: Path) -> list[Path]:
    files = (path for path in package.glob("*.py") if not path.is_symlink())
    return sorted(path for path in files if not path.name.startswith((".", "_", "test_")))


def _importable(name: str, file: Path) -> str:
    if not all(part.isidentifier() for part in name.split(".")):
        raise DeclarationError(
            f"{file} cannot be imported: {name!r} is no module's name; a folder under modules/ is named with letters, "
            "digits and _"
        )
    return name


def _import_file(name: str, file: Path, folder: Path) -> None:
    try:
        module = importlib.import_module(name)
    except DeclarationError:
        raise
    except (Exception, SystemExit) as exc:
        other = _other_home(folder)
        if other is not None and isinstance(exc, ModuleNotFoundError):
            _refuse_other(name, file, other)
        raise DeclarationError(f"{file} cannot be imported: {_cause(exc, file)}") from exc
    where = Path(module.__file__).resolve() if module.__file__ else None
    if where != file:
        _refuse_other(name, file, where)


def _refuse_other(name: str, file: Path, other: Path | None) -> NoReturn:
    raise DeclarationError(
        f"{file} cannot be imported as {name}: this process has imported that name from {other} already; one process "
        'holds the modules of one project, so start another, or rename the other package called "modules"'
    )


def _other_home(folder: Path) -> Path | None:
    """Return where the package ``modules`` comes from, unless it is the one of this folder."""
    package = sys.modules.get("modules")
    places = [Path(place).resolve() for place in getattr(package, "__path__", ())]
    return None if not places or folder / "modules" in places else places[0]


def import_named(name: str) -> ModuleType:
    """Import a module that declares tasks, named as ``import`` would name it.

    Raises:
        DeclarationError: it cannot be imported; the message says who named it, and the error.
    """
    hint = "named by --import or [plugin.queue] imports"
    if not all(part.isidentifier() for part in name.split(".")):
        raise DeclarationError(f'cannot import {name!r} ({hint}): write a module\'s name, like "billing.tasks"')
    try:
        return importlib.import_module(name)
    except DeclarationError:
        raise
    except (Exception, SystemExit) as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name is not None and f"{name}.".startswith(f"{exc.name}."):
            raise DeclarationError(
                f"cannot import {name!r} ({hint}): there is no module {exc.name!r} here or in the environment"
            ) from exc
        raise DeclarationError(f"cannot import {name!r} ({hint}): {_cause(exc, None)}") from exc


def _cause(exc: BaseException, file: Path | None) -> str:
    """Say what was raised, at which line of the file, and where it came from when that was elsewhere."""
    if isinstance(exc, SyntaxError) and exc.filename is not None:
        return f"{error_text(exc)} ({exc.filename}, line {exc.lineno})"
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<frozen")]
    frames = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    if not frames:
        return error_text(exc)
    own = [frame for frame in frames if file is not None and Path(frame.filename) == file]
    places = [f"line {own[-1].lineno}"] if own else []
    if not own or frames[-1] is not own[-1]:
        places.append(f"raised in {frames[-1].filename}, line {frames[-1].lineno}")
    return f"{error_text(exc)} ({', '.join(places)})"
