"""What ``/ready`` says of the outbox."""

from __future__ import annotations

from typing import Any

from jfast_sync.health import Health
from jfast_sync.outbox.rows import OutboxStats

__all__ = ["outbox_health"]


def outbox_health(stats: OutboxStats, *, stale_after: float, relay: Health | None = None) -> Health:
    """Say how the outbox is: degraded from the first message that could not be sent.

    Args:
        stats: the counts.
        stale_after: seconds after which a message that waits is too old.
        relay: how the relay of this process is; None where none runs here.
    """
    troubles: list[str] = []
    if stats.dead:
        why = f"; the latest failed with: {stats.last_error}" if stats.last_error and not stats.failing else ""
        troubles.append(f"{_number(stats.dead, stats.cap)} dead: see jfast-sync outbox dead{why}")
    if stats.failing:
        troubles.append(f"{_number(stats.failing, stats.cap)} cannot be sent: {stats.last_error}")
    oldest = stats.oldest_pending_seconds
    if oldest is not None and oldest > stale_after:
        troubles.append(f"the oldest waits for {oldest:.0f} s: is a relay running?")
    if relay is not None and relay.detail:
        troubles.append(relay.detail)
    meta: dict[str, Any] = {
        "pending": stats.pending,
        "failing": stats.failing,
        "dead": stats.dead,
        "published": stats.published,
        "oldest_pending_seconds": oldest,
        "relay": "elsewhere" if relay is None else "running" if relay.healthy else "failing",
    }
    return Health(status="degraded" if troubles else "ok", detail="; ".join(troubles), meta=meta)


def _number(count: int, cap: int) -> str:
    many = "messages" if count > 1 else "message"
    return f"{count} {many}" if not cap or count < cap else f"{count} {many} or more"
