"""What to write instead of the forms that other programs know and this one refuses."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["not_understood", "wrong_count"]

_FOREIGN: Final = (
    (re.compile(r"\?"), 'Quartz\'s "?" is not part of cron; write *'),
    (re.compile(r"#"), 'Quartz\'s "#" (the n-th weekday) is not part of cron; let the task look at scheduled_for'),
    (
        re.compile(r"^\d+w$"),
        'Quartz\'s "W" (the nearest weekday) is not part of cron; let the task look at scheduled_for',
    ),
    (
        re.compile(r"^[hr](?:\(|/|$)|~"),
        "random values would differ in every replica; write a number, and jitter=timedelta(...) to spread the load",
    ),
    (re.compile(r"^$"), "nothing stands between two commas, or before or after one; take the comma out"),
    (re.compile(r"(?:^|[-/])-\d"), "numbers are not negative; write {low} to {high}"),
    (re.compile(r"\."), "numbers are whole; write {low} to {high}"),
    (re.compile(r"/\d{5}"), "the step is out of range; write 1 to {high}"),
    (re.compile(r"\d{5}"), "the number is out of range; write {low} to {high}"),
    (re.compile(r"^[a-z]{4,}"), "names have three letters, like jan or mon"),
)

_LAST: Final = {
    "day of month": (
        re.compile(r"(?:^|\d|-)l(?:w$|-\d+$|$)"),
        'Quartz\'s "L" (the last) is not part of cron; write 28-31, and let the task look for the last one',
    ),
    "day of week": (
        re.compile(r"^(?:[0-7]|sun|mon|tue|wed|thu|fri|sat)?l$"),
        'Quartz\'s "L" (the last) is not part of cron; write {day}, and let the task look for the last one',
    ),
}


def wrong_count(fields: int) -> str:
    """Say what is wrong with a number of fields other than five."""
    if fields == 0:
        return 'it is empty; write five fields, like "0 3 * * *"'
    known = "minute, hour, day of month, month, day of week"
    if fields == 6:
        return (
            f"six fields, but cron has five: {known}. Leave the seconds or the year out; for seconds take "
            "every=timedelta(seconds=...)"
        )
    if fields > 6:
        return f"{fields} fields, but cron has five: {known}; leave the seconds and the year out"
    return f"{fields} fields, but cron has five: {known}; write * for each that may be anything"


def not_understood(item: str, field: str, low: int, high: int) -> str:
    """Say why something between two commas is refused, in a field of numbers from ``low`` to ``high``."""
    if field in _LAST and _LAST[field][0].search(item):
        return _LAST[field][1].replace("{day}", item[:-1] or "sat")
    for pattern, text in _FOREIGN:
        if pattern.search(item):
            return text.replace("{low}", str(low)).replace("{high}", str(high))
    example = {"month": "jan or 1-6", "day of week": "mon or 1-5"}.get(field, "5, 1-6 or */2")
    return f"not understood; write something like {example}"
