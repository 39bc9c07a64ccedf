"""Which time zone data is in use."""

from __future__ import annotations

import zoneinfo
from importlib import metadata
from pathlib import Path

import pytest

from jfast_sync_cli.zone_data import ZoneData, in_use, of_package


def test_the_first_folder_with_zones_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    empty.mkdir()
    (full / "Europe").mkdir(parents=True)
    (full / "Europe" / "Madrid").touch()
    monkeypatch.setattr(zoneinfo, "TZPATH", (str(empty), str(full)))
    assert in_use() == ZoneData(None, str(full))
    assert str(in_use()) == f"of unknown version in {full}"
    (full / "tzdata.zi").write_text("# version 2025b\nR d ...")
    assert in_use() == ZoneData("2025b", str(full))
    monkeypatch.setattr(zoneinfo, "TZPATH", ())
    assert in_use() == of_package()


def test_a_packages_number_is_a_version_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, version in {"2025.2": "2025b", "2024.1.post1": "2024a", "2025": None}.items():
        monkeypatch.setattr(metadata, "version", lambda _, number=number: number)
        assert of_package() == ZoneData(version, f"the package tzdata {number}")
    assert ZoneData("2025b", "").older_than(ZoneData("2026a", ""))
    assert not ZoneData(None, "").older_than(ZoneData("2026a", ""))
