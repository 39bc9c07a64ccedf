"""Payloads: checked and encoded to plain JSON when a job is enqueued, so that no worker meets a bad one.

What is encoded how:

========================  =========================================================================
``datetime`` (aware)      ISO 8601 with its offset, ``"2026-01-31T08:30:00+00:00"``; naive is refused
``date``                  ``"2026-01-31"``
``UUID``                  ``"f81d4fae-7dec-11d0-a765-00a0c91e6bf6"``
``Decimal``               its digits, ``"19.90"``; NaN and Infinity are refused
``Enum``                  its value, by these same rules
dataclass, ``Mapping``    an object
``tuple``                 an array
``int``                   from -2**63 to 2**64 - 1, what JSON readers of other languages can hold
``float``                 finite; a database may give 1e16 and above back as a whole number, equal to it
``str``                   without NUL and without half surrogate pairs, which databases refuse
========================  =========================================================================

Everything else is refused, as are keys that are not strings, circular references, more than 200 levels, and more
than the allowed bytes of compact UTF-8 JSON.
"""

from __future__ import annotations

from jfast_sync.payload.encoding import MAX_BYTES, MAX_DEPTH, encode
from jfast_sync.payload.typed import check_against, check_type, decode_into, is_payload_type

__all__ = ["MAX_BYTES", "MAX_DEPTH", "check_against", "check_type", "decode_into", "encode", "is_payload_type"]
