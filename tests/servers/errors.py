"""What the servers raise."""

from __future__ import annotations


class ServerUnavailable(Exception):
    """A server the tests need cannot be had here; the message ends with the command that helps."""
