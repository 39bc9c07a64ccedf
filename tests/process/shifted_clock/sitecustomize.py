"""A process whose clock is wrong by `CLOCK_SHIFT` seconds: Python imports this at its start, before anything else."""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from typing import Any

_SHIFT = float(os.environ["CLOCK_SHIFT"])
_time, _time_ns = time.time, time.time_ns
_Datetime = dt.datetime


class _Meta(type):
    """What C code makes is a plain datetime: that is one of these too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Datetime)


class _Shifted(_Datetime, metaclass=_Meta):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _Datetime.now(tz) + dt.timedelta(seconds=_SHIFT)

    @classmethod
    def utcnow(cls) -> Any:
        return _Datetime.now(dt.UTC).replace(tzinfo=None) + dt.timedelta(seconds=_SHIFT)


time.time = lambda: _time() + _SHIFT
time.time_ns = lambda: _time_ns() + int(_SHIFT * 1e9)
dt.datetime = _Shifted  # type: ignore[misc]
print(f"clock shifted by {_SHIFT:g} s: {dt.datetime.now(dt.UTC)}", file=sys.stderr)
