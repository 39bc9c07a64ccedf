"""What a handler may ask for by annotation besides its payload and its job.

At run time the two are marks that injection looks for, so that declaring tasks loads neither SQLAlchemy nor the
app; to a type checker they are what the handler really gets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

__all__ = ["TaskContext", "TaskSession"]

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from jfast_sync.core import JFast

    TaskContext: TypeAlias = JFast
    TaskSession: TypeAlias = Session
else:

    class TaskContext:
        """Annotation of a parameter that gets the app context: what ``jfast_sync.get_context()`` answers in a view."""

    class TaskSession:
        """Annotation of a parameter that gets a SQLAlchemy ``Session`` on the primary database.

        Its transaction belongs to the worker: it commits after the handler has returned, together with the idempotency
        claim and the job's completion, and rolls back when the handler raises. A handler's own ``commit()`` or
        ``rollback()`` ends a savepoint inside it.
        """
