"""Which time zone data this machine uses: the system's where there is any, else the tzdata package's."""

from __future__ import annotations

import re
import zoneinfo
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

__all__ = ["ZoneData", "in_use", "of_package"]

_ANY: Final = "Europe/Madrid"
_VERSION: Final = re.compile(r"\d{4}[a-z]{1,2}")


@dataclass(frozen=True, slots=True)
class ZoneData:
    """``version`` is IANA's, like 2025b; None where the data does not tell. ``place`` is a folder or a package."""

    version: str | None
    place: str

    def __str__(self) -> str:
        return f"{self.version or 'of unknown version'} in {self.place}"

    def older_than(self, other: ZoneData) -> bool:
        """Say whether it certainly is."""
        return self.version is not None and other.version is not None and self.version < other.version


def in_use() -> ZoneData | None:
    """Return the data that zones are read from, or None where there is none at all."""
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / _ANY).is_file():
            return ZoneData(_version_in(folder), str(folder))
    return of_package()


def of_package() -> ZoneData | None:
    """Return the tzdata package's data, None where it is not installed."""
    try:
        number = metadata.version("tzdata")  # 2025.2 is IANA's 2025b
    except metadata.PackageNotFoundError:
        return None
    year, _, release = number.partition(".")
    letter = release.partition(".")[0]
    known = letter.isdigit() and 1 <= int(letter) <= 26
    return ZoneData(f"{year}{chr(ord('a') + int(letter) - 1)}" if known else None, f"the package tzdata {number}")


def _version_in(folder: Path) -> str | None:
    for name in ("tzdata.zi", "+VERSION"):
        try:
            with (folder / name).open(encoding="ascii", errors="replace") as file:
                found = _VERSION.search(file.readline())
        except OSError:
            continue
        if found is not None:
            return found[0]
    return None
