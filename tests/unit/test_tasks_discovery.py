"""Where tasks are found, and what is said about a file that cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jfast_sync.errors import DeclarationError
from jfast_sync.tasks.discovery import discover
from jfast_sync.tasks.registry import Registry, isolated


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    with isolated():
        yield
    for name in set(sys.modules) - before:
        if (sys.modules[name].__file__ or "").startswith("/tmp/") or name.startswith(("more_", "billing_")):
            del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def declares(name: str) -> str:
    return f"from jfast_sync.tasks import task\n\n@task({name!r})\ndef handler(payload: dict) -> None: ...\n"


def refusal(folder: Path, imports: tuple[str, ...] = ()) -> DeclarationError:
    with pytest.raises(DeclarationError) as caught:
        discover(folder, imports)
    return caught.value


def test_finds_files_and_packages_in_order(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "modules/invoice/tasks.py": declares("invoice"),
            "modules/account/tasks/__init__.py": declares("account"),
            "modules/account/tasks/mail.py": declares("account.mail"),
            "modules/account/tasks/deep/er.py": declares("account.deep"),
            "modules/bare/tasks/only.py": declares("bare.only"),
            "modules/none/views.py": "raise RuntimeError('not a tasks.py')",
            "modules/tasks.py": "raise RuntimeError('not in a module')",
            "modules/__pycache__/tasks.py": "raise RuntimeError('cache')",
            "modules/.hidden/tasks.py": "raise RuntimeError('hidden')",
            "modules/account/tasks/_private.py": "raise RuntimeError('private')",
            "modules/account/tasks/test_mail.py": "raise RuntimeError('test')",
            "tasks.py": "raise RuntimeError('elsewhere')",
        },
    )
    found = discover(tmp_path)
    assert found == [
        "modules.account.tasks",
        "modules.account.tasks.mail",
        "modules.account.tasks.deep.er",
        "modules.bare.tasks.only",
        "modules.invoice.tasks",
    ]
    assert Registry().names() == ["account", "account.deep", "account.mail", "bare.only", "invoice"]
    assert Registry().get("account.mail").module == "account"
    assert sys.path[0] == str(tmp_path)


def test_twice_is_once(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": declares("a")})
    discover(tmp_path)
    first = Registry().get("a")
    discover(tmp_path)
    assert Registry().get("a") is first
    assert sys.path.count(str(tmp_path)) == 1


def test_no_modules_folder(tmp_path: Path) -> None:
    assert discover(tmp_path) == []


def test_symbolic_links_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {"elsewhere/tasks.py": "raise RuntimeError('linked')", "modules/a/tasks.py": declares("a")})
    (tmp_path / "modules" / "linked").symlink_to(tmp_path / "elsewhere")
    assert discover(tmp_path) == ["modules.a.tasks"]


def test_the_folder_itself_may_be_reached_by_a_link(tmp_path: Path) -> None:
    write(tmp_path / "real", {"modules/a/tasks.py": declares("a")})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert discover(tmp_path / "link") == ["modules.a.tasks"]


def test_tasks_may_import_their_neighbours(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "modules/a/models.py": "NAME = 'from.models'\n",
            "modules/a/tasks.py": "from modules.a.models import NAME\nfrom jfast_sync.tasks import task\n"
            "@task(NAME)\ndef f(payload): ...\n",
        },
    )
    discover(tmp_path)
    assert Registry().names() == ["from.models"]


def test_an_error_names_file_line_and_cause(tmp_path: Path) -> None:
    file = write(tmp_path, {"modules/a/tasks.py": "x = 1\n\ny = 1 / 0\n"}) / "modules/a/tasks.py"
    error = refusal(tmp_path)
    assert str(error) == f"{file} cannot be imported: ZeroDivisionError: division by zero (line 3)"
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_an_error_further_down_names_both_places(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": "\nimport modules.a.models\n", "modules/a/models.py": "\n\n\nboom\n"})
    message = str(refusal(tmp_path))
    models = tmp_path / "modules/a/models.py"
    assert f"NameError: name 'boom' is not defined (line 2, raised in {models}, line 4)" in message


def test_a_missing_import(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": "import surely_not_installed\n"})
    message = str(refusal(tmp_path))
    assert (
        "modules/a/tasks.py cannot be imported: ModuleNotFoundError: No module named 'surely_not_installed' (line 1)"
        in message
    )


def test_a_syntax_error(tmp_path: Path) -> None:
    file = write(tmp_path, {"modules/a/tasks.py": "x = 1\ndef f(:\n"}) / "modules/a/tasks.py"
    message = str(refusal(tmp_path))
    assert message.startswith(f"{file} cannot be imported: SyntaxError: ")
    assert f"({file}, line 2)" in message


@pytest.mark.parametrize("source", ["raise SystemExit(3)", "import sys; sys.exit('no')", "raise ValueError('\\ud800')"])
def test_a_module_that_raises_anything(tmp_path: Path, source: str) -> None:
    write(tmp_path, {"modules/a/tasks.py": source})
    message = str(refusal(tmp_path))
    assert "modules/a/tasks.py cannot be imported: " in message
    message.encode()


def test_secrets_in_the_error_are_masked(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": "raise ValueError('postgresql://me:s3cret@host/db is down')"})
    assert "s3cret" not in str(refusal(tmp_path))


def test_a_wrong_declaration_keeps_its_own_message(tmp_path: Path) -> None:
    source = "from jfast_sync.tasks import task\n@task('a')\nasync def f(payload): ...\n"
    file = write(tmp_path, {"modules/a/tasks.py": source}) / "modules/a/tasks.py"
    assert str(refusal(tmp_path)).startswith(f"{file}:2: f() is an async def")


def test_one_name_in_two_modules_names_both(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": declares("same"), "modules/b/tasks.py": declares("same")})
    message = str(refusal(tmp_path))
    assert str(tmp_path / "modules/a/tasks.py:3") in message
    assert str(tmp_path / "modules/b/tasks.py:3") in message


def test_after_a_repair_the_import_works(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": declares("a") + "1 / 0\n"})
    refusal(tmp_path)
    write(tmp_path, {"modules/a/tasks.py": "\n\n" + declares("a")})
    discover(tmp_path)
    assert Registry().names() == ["a"]


def test_a_file_and_a_package_of_one_module(tmp_path: Path) -> None:
    write(tmp_path, {"modules/a/tasks.py": declares("a"), "modules/a/tasks/mail.py": declares("b")})
    assert "has both tasks.py and a tasks/ package" in str(refusal(tmp_path))


def test_a_folder_that_is_no_name(tmp_path: Path) -> None:
    write(tmp_path, {"modules/my-module/tasks.py": declares("a")})
    assert "'modules.my-module.tasks' is no module's name" in str(refusal(tmp_path))


@pytest.mark.parametrize("start", ["", "modules/__init__.py"])
def test_the_modules_of_another_project(tmp_path: Path, start: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        write(folder, {"modules/a/tasks.py": declares(folder.name), **({start: ""} if start else {})})
    write(two, {"modules/b/tasks.py": declares("b")})
    discover(one)
    message = str(refusal(two))
    assert f"{two}/modules/a/tasks.py cannot be imported as modules.a.tasks: " in message
    assert str(one / "modules") in message
    assert "one project" in message


def test_another_projects_package_hides_a_module_it_lacks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, {"modules/__init__.py": "", "modules/a/tasks.py": declares("a")})
    write(two, {"modules/__init__.py": "", "modules/b/tasks.py": declares("b")})
    discover(one)
    assert f"has imported that name from {one}/modules already" in str(refusal(two))


def test_isolated_forgets_the_project(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, {"modules/a/tasks.py": declares(name)})
        path = list(sys.path)
        with isolated():
            discover(tmp_path / name)
            assert Registry().names() == [name]
        assert sys.path == path
        assert "modules" not in sys.modules


def test_named_imports(tmp_path: Path) -> None:
    write(tmp_path, {"more_tasks.py": declares("more"), "billing_app/jobs.py": declares("billing")})
    assert discover(tmp_path, ["more_tasks", "billing_app.jobs"]) == ["more_tasks", "billing_app.jobs"]
    assert Registry().names() == ["billing", "more"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("surely_not_there", "there is no module 'surely_not_there'"),
        ("surely_not_there.tasks", "there is no module 'surely_not_there'"),
        ("more_broken.tasks", "there is no module 'more_broken.tasks'"),
        ("more_raising", "RuntimeError: on purpose (raised in "),
        ("more_lacking", "ModuleNotFoundError: No module named 'surely_not_there' (raised in "),
        ("path/to/tasks.py", "write a module's name"),
        ("", "write a module's name"),
        (".relative", "write a module's name"),
    ],
)
def test_named_imports_that_fail(tmp_path: Path, name: str, reason: str) -> None:
    write(
        tmp_path,
        {
            "more_broken/__init__.py": "",
            "more_raising.py": "raise RuntimeError('on purpose')",
            "more_lacking.py": "import surely_not_there",
        },
    )
    message = str(refusal(tmp_path, (name,)))
    assert f"cannot import {name!r} (named by --import or [plugin.queue] imports): " in message
    assert reason in message
