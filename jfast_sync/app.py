"""How an app is found and built: by a script, by the worker, by the command line and by Flask alike.

``connect()`` opens what a ``jfast.toml`` describes and starts no thread. ``load()`` takes an app the code names
(``--app``), or the conventional one, or builds it from ``jfast.toml`` and the modules beside it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jfast_sync import adapters, context
from jfast_sync.config import Config, load_config
from jfast_sync.core import JFast
from jfast_sync.errors import ConfigError, JFastError
from jfast_sync.redact import error_text
from jfast_sync.source import Overrides, Source
from jfast_sync.tasks.discovery import discover, import_named

if TYPE_CHECKING:
    from sqlalchemy import Engine

__all__ = ["JFast", "build", "connect", "load"]

_CONVENTIONS: Final = (("main", "app"), ("app", "create_app"))


def build(
    config: Config,
    *,
    imports: tuple[str, ...] = (),
    source: Source | None = None,
    engine: Engine | None = None,
    threads: int | None = None,
) -> JFast:
    """Import the tasks of the modules beside the configuration and build the app; it becomes the process's current one.

    Raises:
        DeclarationError: a tasks.py cannot be imported, or a task is declared wrongly.
    """
    discover(config.folder, (*config.queue.imports, *imports))
    app = JFast(config, engine=engine, threads=threads, source=source)
    context.install_app(app)
    return app


def connect(path: str | Path | None = None, *, overrides: Overrides | None = None) -> JFast:
    """Open what ``jfast.toml`` in the current folder describes, for a ``with`` block; starts no thread.

    Args:
        path: another file, or a folder that holds one.
        overrides: values over file and environment, by table: ``{"queue": {"max_attempts": 5}}``.

    Raises:
        ConfigError: the configuration is wrong; the message names file, table, key and value.
    """
    return _from_file(Source(config_path=str(path) if path is not None else None, overrides=overrides or {}), None)


def load(
    target: str | None = None,
    *,
    config_path: str | Path | None = None,
    imports: tuple[str, ...] = (),
    overrides: Overrides | None = None,
    threads: int | None = None,
) -> JFast:
    """Return the app a worker or command works for.

    Args:
        target: ``MODULE:ATTR``, a Flask app, a :class:`JFast` or a factory of one. None takes ``main:app`` or
            ``app:create_app`` where such a file declares one, else builds from ``jfast.toml`` and ``modules/``.
        config_path: the file, or a folder that holds one; the current folder's unless given.
        imports: more modules that declare tasks.
        overrides: values over file and environment, by table.
        threads: how many threads will hold sessions; sizes the connection pool.

    Raises:
        ConfigError: the target cannot be imported or is no such app.
    """
    folder = _folder(config_path)
    _put_on_path(folder)
    source = Source(
        target=target or _conventional(folder),
        config_path=str(config_path) if config_path is not None else None,
        imports=imports,
        overrides=overrides or {},
    )
    if source.target is None:
        return _from_file(source, threads)
    with adapters.sized_for(threads):
        app = _resolve(source.target)
    for module in imports:
        import_named(module)
    app.source = source
    context.install_app(app)
    return app


def _from_file(source: Source, threads: int | None) -> JFast:
    config = load_config(
        Path(source.config_path) if source.config_path is not None else None, overrides=source.overrides
    )
    return build(config, imports=source.imports, source=source, threads=threads)


def _folder(config_path: str | Path | None) -> Path:
    path = Path(config_path) if config_path is not None else Path.cwd()
    return (path if path.is_dir() else path.parent).resolve()


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _conventional(folder: Path) -> str | None:
    for module, name in _CONVENTIONS:
        file = folder / f"{module}.py"
        if file.is_file() and name in _top_level_names(file):
            return f"{module}:{name}"
    return None


def _top_level_names(file: Path) -> set[str]:
    """Read, without importing, what a module binds at its top level."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return set()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _resolve(target: str) -> JFast:
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(f"--app {target!r}: write MODULE:ATTR, for example main:app")
    try:
        found = getattr(import_module(module), name)
        app = _core_of(found)
        if app is None and callable(found):
            app = _core_of(found())
    except JFastError:
        raise
    except Exception as exc:
        raise ConfigError(f"--app {target!r} cannot be loaded: {error_text(exc)}") from exc
    if app is None:
        raise ConfigError(
            f"--app {target!r} is neither a Flask app with JFast().init_app(app), nor a jfast_sync.JFast, nor a "
            "function that returns one"
        )
    return app


def _core_of(found: Any) -> JFast | None:
    if isinstance(found, JFast):
        return found
    extensions = getattr(found, "extensions", None)
    core = extensions.get("jfast") if isinstance(extensions, Mapping) else None
    return core if isinstance(core, JFast) else None
