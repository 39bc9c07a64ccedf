"""What a relay has seen of servers that could not be reached, and when they were back: decided without I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from jfast_sync.outbox.delivery import Result

__all__ = ["Outages"]

_LONG: Final = 2  # batches in a row of which nothing was sent; after fewer the next attempts are near anyway


class Outages:
    """The outages one relay has met, by kind of message: jobs go to one server, events to another."""

    def __init__(self) -> None:
        self._batches: Counter[str] = Counter()
        self._errors: defaultdict[str, set[str]] = defaultdict(set)

    def ended(self, result: Result) -> dict[str, set[str]]:
        """Take in what became of a batch; return the kinds that can be sent again, with the errors seen meanwhile.

        One message that can never be sent, whatever its error is called, makes no outage: others are sent beside it.
        """
        sent = {message.kind for message in result.sent}
        away: defaultdict[str, set[str]] = defaultdict(set)
        for failure in result.failed:
            if failure.away:
                away[failure.message.kind].add(failure.error.partition(":")[0])
        for kind in away.keys() - sent:
            self._batches[kind] += 1
            self._errors[kind] |= away[kind]
        back = {kind: self._errors[kind] for kind in sent - away.keys() if self._batches[kind] >= _LONG}
        for kind in sent - away.keys():
            self._batches.pop(kind, None)
            self._errors.pop(kind, None)
        return back
