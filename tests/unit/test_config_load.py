"""load_config: precedence, the four sources, and messages that name the place and the fix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from jfast_sync.config import Config, load_config
from jfast_sync.config.tables import TABLES
from jfast_sync.errors import ConfigError


def load(folder: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: dict[str, object]) -> Config:
    (folder / "jfast.toml").write_text(toml)
    return load_config(folder, environ=environ or {}, overrides=flags)


def refusal(folder: Path, toml: str = "", environ: Mapping[str, str] | None = None, **flags: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, toml, environ, **flags)
    return str(caught.value)


def test_without_a_file_everything_has_its_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(environ={})
    assert config.source is None
    assert config.folder == tmp_path
    assert config.database.dsn == f"sqlite:///{tmp_path}/jfast.db"
    assert config.plugins.enabled == ("observability", "database", "queue", "outbox")
    assert (config.queue.backend, config.backend, config.tick_store) == ("auto", "sqlite", "database")
    assert (config.queue.visibility_timeout, config.queue.max_attempts, config.queue.job_timeout) == (60.0, 3, 600.0)
    assert config.events.consumer_group == config.app.name == "jfast-service"
    assert config.warnings == ()
    assert {row.origin for row in config.describe()} == {"default"}


def test_the_file_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jfast.toml").write_text('[app]\nname = "here"\n')
    config = load_config(environ={})
    assert config.app.name == "here"
    assert config.source is not None


def test_flags_win_over_environment_over_file_over_default(tmp_path: Path) -> None:
    toml = "[plugin.queue]\nmax_attempts = 4\njob_timeout = 1\nbackoff_base = 0.5\n"
    environ = {"JFAST_QUEUE_MAX_ATTEMPTS": "5", "JFAST_QUEUE_JOB_TIMEOUT": "2.5"}
    config = load(tmp_path, toml, environ, queue={"max_attempts": 6, "job_timeout": None})
    assert (config.queue.max_attempts, config.queue.job_timeout, config.queue.backoff_base) == (6, 2.5, 0.5)
    origins = {row.key: row.origin for row in config.describe() if row.table == "plugin.queue"}
    assert [origins[k] for k in ("max_attempts", "job_timeout", "backoff_base", "backoff_cap")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.title())
def test_every_key_can_be_given_in_the_environment(tmp_path: Path, table: type) -> None:
    for key in table.keys().values():  # type: ignore[attr-defined]
        if key.default is None or key.default == () or key.default == "":
            continue
        text = ",".join(key.default) if isinstance(key.default, tuple) else str(key.default)
        for name in key.environment:
            config = load(tmp_path, "", {name: text})
            assert config.origins[key.table, key.name] == "environment"


def test_relative_sqlite_path_counts_from_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service, elsewhere = tmp_path / "service", tmp_path / "elsewhere"
    service.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    toml = '[plugin.database]\ndsn = "sqlite:///data/../x.db?timeout=3"\n'
    assert load(service, toml).database.dsn == f"sqlite:///{service}/x.db?timeout=3"
    assert load(service).database.dsn == f"sqlite:///{service}/jfast.db"
    assert load(service, "", {"JFAST_DB_DSN": "sqlite:///y.db"}).database.dsn == f"sqlite:///{service}/y.db"
    assert load(service, "", database={"dsn": "sqlite:///z.db"}).database.dsn == f"sqlite:///{elsewhere}/z.db"


@pytest.mark.parametrize("dsn", ["sqlite://", "sqlite:///:memory:", "sqlite:////abs/x.db", "postgresql://u@h/jfast.db"])
def test_other_dsns_stay_as_they_are(tmp_path: Path, dsn: str) -> None:
    assert load(tmp_path, "", {"JFAST_DB_DSN": dsn}).database.dsn == dsn


def test_linked_file_counts_from_the_links_folder(tmp_path: Path) -> None:
    mounted, version = tmp_path / "mounted", tmp_path / "mounted" / "..2024"
    version.mkdir(parents=True)
    (version / "jfast.toml").write_text("")
    (mounted / "jfast.toml").symlink_to(version / "jfast.toml")
    assert load_config(mounted, environ={}).folder == mounted


@pytest.mark.parametrize("name", ["nope.toml", "empty"])
def test_a_named_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=name):
        load_config(tmp_path / name, environ={})


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"[app]\nname = \n", ":2:8: not valid TOML"),
        (b"[app\n", ":1:5: not valid TOML"),
        (b"[app]\nname = 'x", ":2:"),
        (b"[app]\nname = '\xff'\n", ":2:9: not UTF-8"),
        (b"x = " + b"[" * 5000, ": "),
    ],
)
def test_broken_toml_is_named_with_line_and_column(tmp_path: Path, content: bytes, place: str) -> None:
    (tmp_path / "jfast.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path, environ={})
    assert f"{tmp_path}/jfast.toml{place}" in str(caught.value)


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "jfast.toml").write_bytes(b'\xef\xbb\xbf[app]\nname = "x"\n')
    assert load_config(tmp_path, environ={}).app.name == "x"


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (
            '[plugin.queue]\nbakcend = "redis"\n',
            'jfast.toml: [plugin.queue] bakcend = "redis": unknown key; did you mean backend?',
        ),
        ("[plugin.queue]\nrls = true\n", "[plugin.queue] rls = true: unknown key; it belongs to [plugin.database]"),
        ("[plugin.database]\nrelay_x_y = 1\n", "unknown key (known: dsn, pool_size"),
        ("[plugin.quue]\n", "[plugin.quue]: unknown table; did you mean [plugin.queue]?"),
        ("[queue]\n", "[queue]: unknown table; did you mean [plugin.queue]?"),
        ("[zzz]\n", "[zzz]: unknown table (tables: [app], [plugins]"),
        ("plugin = 3\n", "plugin = 3: must hold tables"),
        ("app = 3\n", "app = 3: must be a table, [app]"),
        ("port = 3\n", "port = 3: unknown table"),
        ('[plugins]\nenabled = ["databse"]\n', "no plugin 'databse'; did you mean database?"),
        ('[app]\nenv = "production"\n', "must be one of local, dev, staging, prod; did you mean prod?"),
        ("[app]\nport = 70000\n", "[app] port = 70000: must be 1 to 65535"),
        ("[plugin.queue]\nvisibility_timeout = 0.9\n", "visibility_timeout = 0.9: must be 1 to 86400 seconds"),
        ("[plugin.queue]\nbackoff_base = -1\n", "backoff_base = -1: must be 0 to"),
        ("[plugin.queue]\njob_timeout = nan\n", "job_timeout = NaN: must be a number of seconds"),
        ("[plugin.queue]\njob_timeout = inf\n", "must be a number of seconds"),
        ("[plugin.queue]\njob_timeout = true\n", "must be a number of seconds"),
        (f"[plugin.queue]\njob_timeout = {10**400}\n", "must be a number of seconds"),
        ('[plugin.queue]\njob_timeout = "60"\n', 'job_timeout = "60": must be a number of seconds'),
        ("[plugin.queue]\nmax_attempts = true\n", "max_attempts = true: must be a whole number"),
        ("[plugin.queue]\nmax_attempts = 3.0\n", "must be a whole number"),
        ("[plugin.queue]\nscheduler = 1\n", "scheduler = 1: must be true or false"),
        ('[plugin.queue]\nname = "Robert\'); DROP"\n', "must be lower-case letters"),
        ('[plugin.queue]\nname = "jobs\\n"\n', "control characters"),
        ('[plugin.queue]\nimports = "a.b"\n', "must be a list of texts"),
        ('[plugin.queue]\nimports = ["a b"]\n', "'a b' is not a module's dotted name"),
        ('[plugin.queue]\nbackend = "postgress"\n', "did you mean postgres?"),
        ('[plugin.cache]\nurl = "http://x"\n', "must be a URL that begins with redis://"),
        ('[plugin.queue]\nrabbitmq_url = "amqp://u:p/w@h"\n', "percent-encode"),
        ('[plugin.events]\nbootstrap_servers = "kafka://h"\n', "must be host:port"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, toml: str, words: str) -> None:
    message = refusal(tmp_path, toml)
    assert words in message
    assert message.startswith(f"{tmp_path}/jfast.toml: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "JFAST_QUEUE_BAKCEND",
            "x",
            'JFAST_QUEUE_BAKCEND = "x": no key has this name; did you mean JFAST_QUEUE_BACKEND?',
        ),
        ("JFAST_DATABASE_DSN", "x", "did you mean JFAST_DB_DSN?"),
        (
            "JFAST_DBDSN",
            "postgresql://u:hunter2@h/x",
            "JFAST_DBDSN = ***: no key has this name; did you mean JFAST_DB_DSN?",
        ),
        ("JFAST_QUEU_BACKEND", "memory", "did you mean JFAST_QUEUE_BACKEND?"),
        ("JFAST_PLUGIN_QUEUE_BACKEND", "x", "did you mean JFAST_QUEUE_BACKEND?"),
        (
            "JFAST_QUEUE_MAX_ATTEMPTS",
            "3.5",
            'JFAST_QUEUE_MAX_ATTEMPTS ([plugin.queue] max_attempts) = "3.5": must be a whole number',
        ),
        ("JFAST_QUEUE_MAX_ATTEMPTS", "1_0", "must be a whole number"),
        ("JFAST_QUEUE_MAX_ATTEMPTS", "9" * 5000, "must be a whole number"),
        ("JFAST_QUEUE_JOB_TIMEOUT", "nan", "must be a number of seconds"),
        ("JFAST_QUEUE_JOB_TIMEOUT", "5s", "must be a number of seconds"),
        ("JFAST_OUTBOX_RELAY", "maybe", "must be true or false"),
        ("JFAST_APP_NAME", "a\udcffb", "control characters"),
    ],
)
def test_a_mistake_in_the_environment_is_named(tmp_path: Path, name: str, value: str, words: str) -> None:
    message = refusal(tmp_path, "", {name: value})
    assert words in message
    assert message.startswith(f"environment: {name}")


def test_a_mistake_in_a_flag_is_named(tmp_path: Path) -> None:
    assert 'command line: [plugin.queue] backend = "x"' in refusal(tmp_path, queue={"backend": "x"})
    assert "there is no such key" in refusal(tmp_path, queue={"bakcend": "x"})


def test_all_mistakes_stand_in_one_message(tmp_path: Path) -> None:
    message = refusal(tmp_path, "[app]\nport = 0\nnam = 1\n", {"JFAST_OUTBOX_RELAY": "?"})
    assert message.splitlines()[0] == "3 problems in the configuration:"
    assert len(message.splitlines()) == 4


def test_a_value_that_is_overridden_is_checked_all_the_same(tmp_path: Path) -> None:
    assert "port = 0" in refusal(tmp_path, "[app]\nport = 0\n", {"JFAST_PORT": "80"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JFAST_TEST_POSTGRES_URL", "x"),
        ("JFAST_SOMETHING", "x"),
        ("JFAST_SECRET_KEY", "x"),
        ("JFAST_QUEUE_BACKEND", " "),
        ("JFAST_PORT", "tcp://10.0.0.1:80"),
        ("JFAST_QUEUE_PORT", "tcp://10.0.0.1:80"),
        ("JFAST_QUEUE_PORT_5672_TCP_ADDR", "10.0.0.1"),
        ("JFAST_QUEUE_SERVICE_HOST", "10.0.0.1"),
    ],
)
def test_variables_that_are_not_meant_for_it_are_left_alone(tmp_path: Path, name: str, value: str) -> None:
    config = load(tmp_path, "", {name: value})
    assert (config.app.port, config.queue.backend, config.warnings, config.origins) == (8000, "auto", (), {})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("0", False), ("YES", True), (" off ", False)])
def test_true_and_false_in_the_environment(tmp_path: Path, text: str, value: bool) -> None:
    assert load(tmp_path, "", {"JFAST_QUEUE_SCHEDULER": text}).queue.scheduler is value


def test_lists_in_the_environment(tmp_path: Path) -> None:
    config = load(tmp_path, "", {"JFAST_PLUGINS_ENABLED": "queue, database,,queue"})
    assert config.plugins.enabled == ("queue", "database")


def test_the_first_name_of_a_variable_wins(tmp_path: Path) -> None:
    environ = {"JFAST_LOG_LEVEL": "debug", "JFAST_OBSERVABILITY_LEVEL": "ERROR"}
    assert load(tmp_path, "", environ).observability.level == "DEBUG"


def test_keys_of_the_asynchronous_sibling_give_one_warning_each(tmp_path: Path) -> None:
    toml = """
        [app]
        version = "1"
        [plugins]
        enabled = ["queue", "database", "auth", "llm"]
        disabled = []
        [plugin.queue]
        prefetch = 3
        [plugin.llm]
        budget_usd = 1.0
        other = 2
        [plugin.telemetry]
        sample_ratio = 0.5
        [scaffold]
        language = "es"
    """
    config = load(tmp_path, toml, {"JFAST_DB_POOL_PRE_PING": "true", "JFAST_DB_REPLICA_DSN": "postgres://u:hunter2@h"})
    assert config.plugins.enabled == ("queue", "database")
    for part in (
        "[app] version",
        "[plugins] disabled",
        "enabled: auth",
        "enabled: llm",
        "[plugin.queue] prefetch",
        "[plugin.llm]",
        "[plugin.telemetry]",
        "[scaffold]",
        "JFAST_DB_POOL_PRE_PING",
        "JFAST_DB_REPLICA_DSN",
    ):
        assert sum(part in warning for warning in config.warnings) == 1, part
    assert len(config.warnings) == 10
    assert "hunter2" not in str(config.warnings)


SECRETS = {
    "JFAST_DB_DSN": "postgresql://u:hunter2@h/db",
    "JFAST_DB_LISTEN_DSN": "postgresql://u:hun@ter2@h/db?password=hunter2",
    "JFAST_QUEUE_RABBITMQ_URL": "amqp://u:hunter2@h/",
    "JFAST_CACHE_URL": "redis://:hunter2@h/0",
    "JFAST_EVENTS_SASL_PASSWORD": "hunter2",
}


def test_secrets_are_masked_wherever_the_configuration_is_shown(tmp_path: Path) -> None:
    config = load(tmp_path, "", SECRETS)
    assert config.database.dsn == SECRETS["JFAST_DB_DSN"]
    shown = [
        repr(config),
        str(config.database),
        f"{config.cache}",
        json.dumps([dataclasses.asdict(r) for r in config.describe()]),
    ]
    assert not [text for text in shown if "ter2" in text]
    assert "postgresql://u:***@h/db" in repr(config)


@pytest.mark.parametrize(
    "toml",
    [
        '[plugin.database]\ndsn = "mysql://u:hunter2@h"\n',
        '[plugin.database]\ndsn = "postgres:/u:hunter2@h"\n',
        '[plugin.database]\ndsn = ["hunter2"]\n',
        '[plugin.database]\ndns = "hunter2"\n',
        '[plugin.database]\npostgres = "x://u:hunter2@h"\n',
        '[plugin.events]\nsasl_pasword = "hunter2"\n',
        '[plugin.events]\nsasl_password = 3\nx = "password=hunter2"\n',
        '[plugin.queue]\nbackend = "redis"\n[plugin.database]\ndsn = "postgresql://u:hunter2@h"\n',
        '[app]\nenv = "prod"\n[plugin.queue]\nbackend = "sqlite"\n[plugin.database]\ndsn = "postgresql://u:hunter2@h"\n',
    ],
)
def test_no_refusal_shows_a_secret(tmp_path: Path, toml: str) -> None:
    assert "hunter2" not in refusal(tmp_path, toml)


def test_every_table_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().queue.name = "x"  # type: ignore[misc]
