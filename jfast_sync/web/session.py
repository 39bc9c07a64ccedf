"""One database session per request: opened when first asked for, committed before the answer leaves.

The rule, in one sentence: what a request wrote is committed if its view returned an answer below 400, and rolled back
if anything was raised or the answer is 400 or above.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING

from jfast_sync.sql.own_session import commit_unknown

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.core import JFast

__all__ = ["RequestSession"]


class _Undo(Exception):
    """Tells the session's context manager to roll back."""


class RequestSession:
    """The session of one request; used by the thread that runs it.

    Args:
        core: the app whose primary database it is on.
    """

    def __init__(self, core: JFast) -> None:
        self._core = core
        self._block: AbstractContextManager[Session] | None = None
        self._session: Session | None = None
        self._ended = False
        self.failed = False
        """Whether an exception ended the view, even if an error handler has made an answer of it."""

    def get(self) -> Session:
        """Return the session, opening it the first time.

        Raises:
            RuntimeError: it has been committed or rolled back already.
        """
        if self._ended:
            raise RuntimeError(
                "this request's session has ended: it is committed before the answer leaves. In a streamed body or "
                "after the request open another one, with jf.session() as session"
            )
        if self._session is None:
            block = self._core.session()
            self._session = block.__enter__()
            self._block = block
        return self._session

    def follow_tenant(self) -> None:
        """Go on as the tenant that is the current one now, where the session is open already."""
        if self._session is not None and self._core.database is not None and not self._ended:
            self._core.database.follow_tenant(self._session)

    @property
    def unknown(self) -> bool:
        """Whether :meth:`commit` failed in a way that does not tell whether everything was written or nothing."""
        return commit_unknown(self._session)

    def commit(self) -> None:
        """Commit and close it; what goes wrong is raised, and nothing is written then unless :attr:`unknown`."""
        self._ended = True
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def roll_back(self) -> None:
        """Roll back and close it, unless it has ended already."""
        self._ended = True
        block, self._block = self._block, None
        if block is not None:
            undo = _Undo()
            with suppress(_Undo):
                block.__exit__(_Undo, undo, undo.__traceback__)
