"""What a request brings along, and how much of it is believed. Pure.

Request ids, traces and tenants end in log lines, job rows and events, so nothing is taken over that could forge one.
A tenant is never read from the request here: only the application knows who is asking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jfast_sync.context import Origin, valid_name
from jfast_sync.errors import ConfigError
from jfast_sync.job import new_id

__all__ = ["REQUEST_ID", "arrival", "checked_tenant"]

REQUEST_ID: Final = "X-Request-ID"

# https://www.w3.org/TR/trace-context/: version ff, a trace of zeros and a parent of zeros are invalid; version 00 ends
# after the flags, a later version may go on after another dash.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?P<more>-[!-~]{0,200})?"
)
_TRACESTATE: Final = re.compile(r"[ -~\t]{1,512}")


def arrival(environ: Mapping[str, Any]) -> Origin:
    """Return the origin of a request as its WSGI environment tells it: request id and trace, without tenant.

    An ``X-Request-ID`` that is not 1 to 128 plain characters is replaced by a fresh one; a ``traceparent`` that is not
    valid by the W3C's rules is left out, and ``tracestate`` with it.
    """
    sent = environ.get("HTTP_X_REQUEST_ID", "")
    return Origin(request_id=sent if valid_name(sent) else new_id(), trace=_trace(environ))


def _trace(environ: Mapping[str, Any]) -> dict[str, str] | None:
    parent = environ.get("HTTP_TRACEPARENT", "")
    match = _TRACEPARENT.fullmatch(parent)
    if match is None or (match["version"] == "00" and match["more"] is not None):
        return None
    state = environ.get("HTTP_TRACESTATE", "")
    return {"traceparent": parent, **({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})}


def checked_tenant(tenant: object) -> str | None:
    """Return what the application's tenant callback answered, if it can be a tenant; None is no tenant.

    Raises:
        ConfigError: the callback answered something else.
    """
    if tenant is None or (isinstance(tenant, str) and valid_name(tenant)):
        return tenant
    raise ConfigError(
        f"the tenant callback answered {tenant!r:.80}: a tenant is None or 1 to 128 letters, digits "
        "and . _ : @ / + = -, a letter or digit first"
    )
