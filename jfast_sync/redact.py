"""Texts made safe to store, log and show: no passwords, no SQL parameters, no unbounded length.

Exceptions of drivers carry connection strings and row values, and an exception may not even be
printable. Everything that ends in a table, a log line or an answer passes through here. Where a
text is ambiguous too much is masked rather than too little.
"""

from __future__ import annotations

import re
import traceback
from types import FrameType, TracebackType

__all__ = ["MASK", "error_text", "mask_dsn", "redact", "traceback_text"]

MASK = "***"

_WINDOW = 65_536  # characters of one message that are looked at; the rest is dropped unread
_FIRST_FRAMES, _LAST_FRAMES = 3, 12
_FIRST_CAUSES, _LAST_CAUSES = 2, 6
_LONGEST_CHAIN = 10_000
_SHOWN_MEMBERS = 5

_TOKEN = re.compile(r"\S+")
_SECRET_NAME = r"(?:password|passwd|passphrase|pwd|secret|api_?key|access_?token)(?:[_-][\w-]{0,20})?"
_QUERY_SECRET = re.compile(rf"([?&;](?:[\w-]{{0,30}}?){_SECRET_NAME}=)[^&\s'\"#;]+", re.IGNORECASE)
_KEYWORD_SECRET = re.compile(
    rf"({_SECRET_NAME}['\"]?\s{{0,8}}[=:]\s{{0,8}})"
    r"(?!\*\*\*(?:[&\s'\"#;,)}]|$))(?:[rub]{0,2}'(?:''|\\.|[^'\\])*'?|[rub]{0,2}\"(?:\\.|[^\"\\])*\"?|(?:\\.|[^\s\\])+)",
    re.IGNORECASE | re.DOTALL,
)
_SQL_STARTS = ("[SQL: ", "[parameters: ", "[SQL parameters hidden")
_BACKGROUND = re.compile(r"\n?\(Background on this error at: [^\s()]*\)")
# What PostgreSQL appends to its message; these parts repeat values of rows and parameters.
_SERVER_PART = re.compile(
    r"\n?^(?:DETAIL|CONTEXT|QUERY|STATEMENT|LINE \d+):.*?(?=\n(?:HINT|DETAIL|CONTEXT|QUERY|STATEMENT|LINE \d+):|\Z)",
    re.MULTILINE | re.DOTALL,
)
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


def redact(text: str) -> str:
    """Take secrets and row values out of a text that came from a driver.

    Masked: passwords in URLs (whatever characters they hold), in query strings, in libpq's
    keyword form and in printed keyword arguments. Removed: the statement, parameters and help link
    that SQLAlchemy appends, and the parts of a PostgreSQL message that repeat values.
    """
    return _mask_secrets(_SERVER_PART.sub("", _without_statement(text)))


def mask_dsn(dsn: str) -> str:
    """Show a connection string without its password; the rest stays readable."""
    scheme, separator, rest = dsn.partition("://")
    if separator and not scheme.startswith("sqlite"):
        user_info, at, server = rest.rpartition("@")
        user, colon, _ = user_info.partition(":")
        if colon:
            rest = f"{user}:{MASK}{at}{server}"
    return _mask_keywords(f"{scheme}{separator}{rest}")


def error_text(exc: BaseException, limit: int = 2000) -> str:
    """Say an exception in one redacted text: ``"<Type>: <text>"``.

    Works for every exception: one whose ``__str__`` raises, one with megabytes of text, one with
    characters that no database stores (they become U+FFFD). ``limit`` is in characters.
    """
    name = _storable(type(exc).__name__[:200])
    try:
        text = str(exc)
    except (Exception, SystemExit) as failure:
        text = f"<its text cannot be shown: __str__ raised {type(failure).__name__[:200]}>"
    text = redact(_storable(_window(text))).strip()
    return _shorten(f"{name}: {text}" if text else name, limit)


def traceback_text(exc: BaseException, limit: int = 8000) -> str:
    """Write an exception's traceback, causes first, in at most ``limit`` characters.

    Of a long chain and of a deep stack the outermost and innermost parts are kept. Messages are
    redacted as in :func:`error_text`; values of local variables are never shown.
    """
    chain = _chain(exc)
    if len(chain) <= _FIRST_CAUSES + _LAST_CAUSES:
        parts = [_one_traceback(link) for link in chain]
    else:
        parts = [_one_traceback(link) for link in chain[:_FIRST_CAUSES]]
        parts.append(f"... {len(chain) - _FIRST_CAUSES - _LAST_CAUSES} exceptions more ...")
        parts += [_one_traceback(link) for link in chain[-_LAST_CAUSES:]]
    return _cut_middle("\n\nwhich led to:\n\n".join(parts), limit)


def _without_statement(text: str) -> str:
    starts = [at for at in (text.find(mark) for mark in _SQL_STARTS) if at >= 0]
    if starts:
        # To the last help link, not the first: a parameter may imitate one.
        ends = [match.end() for match in _BACKGROUND.finditer(text)]
        first, last = min(starts), max(ends, default=len(text))
        text = text[:first].rstrip() + (text[last:] if last > first else "")
    return _BACKGROUND.sub("", text)


def _mask_secrets(text: str) -> str:
    if "://" in text:
        text = _TOKEN.sub(_mask_token, text)
    return _mask_keywords(text)


def _mask_token(match: re.Match[str]) -> str:
    token = match.group()
    start = token.find("://")
    at = token.rfind("@")
    colon = token.find(":", start + 3)
    if start < 0 or colon < 0 or at < colon:
        return token
    return f"{token[:colon]}:{MASK}{token[at:]}"


def _mask_keywords(text: str) -> str:
    return _KEYWORD_SECRET.sub(rf"\1{MASK}", _QUERY_SECRET.sub(rf"\1{MASK}", text))


def _storable(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def _window(text: str) -> str:
    if len(text) <= _WINDOW:
        return text
    kept = text[:_WINDOW]
    # A connection string cut in two no longer looks like one: leave the torn word out.
    torn = "" if kept[-1].isspace() else kept.rsplit(None, 1)[-1]
    return kept.removesuffix(torn) if "://" in torn else kept


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(limit - 4, 0)] + " ..."


def _cut_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    gap = "\n  ... cut ...\n"
    head = max(limit - len(gap), 0) // 3
    tail = max(limit - len(gap) - head, 0)
    return (text[:head] + gap + text[len(text) - tail :])[:limit]


def _chain(exc: BaseException) -> list[BaseException]:
    """The exception and what led to it, oldest first; a circle ends where it closes."""
    chain: list[BaseException] = []
    seen: set[int] = set()
    current: BaseException | None = exc
    while current is not None and id(current) not in seen and len(chain) < _LONGEST_CHAIN:
        seen.add(id(current))
        chain.append(current)
        hidden = current.__cause__ is not None or current.__suppress_context__
        current = current.__cause__ if hidden else current.__context__
    chain.reverse()
    return chain


def _one_traceback(exc: BaseException) -> str:
    lines = [_stack(exc.__traceback__), error_text(exc)]
    notes = getattr(exc, "__notes__", None)
    if isinstance(notes, list):
        lines += [_shorten(redact(_storable(_window(n))), 500) for n in notes[:_SHOWN_MEMBERS] if isinstance(n, str)]
    if isinstance(exc, BaseExceptionGroup):
        lines += [f"  - {error_text(member, 500)}" for member in exc.exceptions[:_SHOWN_MEMBERS]]
    return "\n".join(line for line in lines if line)


def _stack(trace: TracebackType | None) -> str:
    frames = list(traceback.walk_tb(trace))
    if not frames:
        return ""
    left_out = max(len(frames) - _FIRST_FRAMES - _LAST_FRAMES, 0)
    parts = _frame_lines(frames[:_FIRST_FRAMES])
    if left_out:
        parts.append(f"  ... {left_out} frames more ...")
    parts += _frame_lines(frames[_FIRST_FRAMES + left_out :])
    return _mask_secrets(_storable("\n".join(["Traceback (most recent call last):", *parts])))


def _frame_lines(frames: list[tuple[FrameType, int]]) -> list[str]:
    summary = traceback.StackSummary.extract(iter(frames), capture_locals=False)
    return [text.rstrip("\n") for text in summary.format()]
