"""Errors of ours as RFC 9457 problems. Pure.

=====================  ======  ==========================================================
exception              status  detail
=====================  ======  ==========================================================
``PayloadError``       422     the path inside the payload and what is wrong there
``UnavailableError``   503     which server cannot be reached; in prod only that one cannot
``UndeliverableEvent`` 500     the fix, in prod too: it names no secret
every other            500     the message; in prod that it is in the log
=====================  ======  ==========================================================
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from jfast_sync.errors import JFastError, PayloadError, UnavailableError, UndeliverableEvent
from jfast_sync.redact import redact
from jfast_sync.web.answers import PROBLEM, Answer

__all__ = ["problem", "problem_of"]

_KIND: Final = "urn:jfast-sync:problem:"
_IN_LOG: Final = "The reason is in the log of this service."


def problem(
    status: int,
    detail: str,
    *,
    instance: str,
    request_id: str | None = None,
    kind: str | None = None,
    title: str | None = None,
) -> Answer:
    """Make a problem document (RFC 9457).

    Args:
        status: the HTTP status.
        detail: what happened this time, for a person.
        instance: the path of the request.
        request_id: leads to the log lines; a member of our own.
        kind: the last part of the problem's type; None is ``about:blank``, whose title is the status's phrase.
        title: what happened, the same each time.
    """
    body = {
        "type": _KIND + kind if kind is not None else "about:blank",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        **({"request_id": request_id} if request_id is not None else {}),
    }
    return Answer(status, body, PROBLEM)


def problem_of(error: JFastError, *, prod: bool, instance: str, request_id: str | None = None) -> Answer:
    """Return the problem that answers ``error``, as the table above says."""
    text = redact(str(error))
    match error:
        case PayloadError():
            status, kind, title, detail = 422, "payload", "The payload cannot be stored", text
        case UnavailableError():
            status, kind, title = 503, "unavailable", "A server this service needs cannot be reached"
            detail = "Try again later." if prod else text
        case UndeliverableEvent():
            status, kind, title, detail = 500, "undeliverable-event", "Nobody would receive the event", text
        case _:
            return problem(500, _IN_LOG if prod else text, instance=instance, request_id=request_id)
    return problem(status, detail, instance=instance, request_id=request_id, kind=kind, title=title)
