"""Unit tests begin without an app that an earlier one has built."""

from __future__ import annotations

import pytest

from jfast_sync import context


@pytest.fixture(autouse=True)
def no_app_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test builds is the process's current app until it is closed; here it ends with the test."""
    monkeypatch.setattr(context, "_installed", [])
