"""The tasks ``jfast-sync demo`` runs, and the tables they write: five kinds of job out of a small shop."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Column, MetaData, Numeric, String, Table, insert, select

from jfast_sync import current_job
from jfast_sync.tasks import TaskSession, task

__all__ = ["CHARGE", "CHECKSUM", "CONVERT", "RECEIPT", "WEBHOOK", "charges", "rates", "receipts", "tables"]

CHECKSUM, RECEIPT, WEBHOOK = "demo.checksum", "demo.receipt", "demo.webhook"
CHARGE, CONVERT = "demo.charge", "demo.convert"

tables = MetaData()
receipts = Table("demo_receipts", tables, Column("job_id", String(128), primary_key=True), Column("text", String(200)))
charges = Table("demo_charges", tables, Column("invoice", String(40), primary_key=True), Column("job_id", String(128)))
rates = Table("demo_rates", tables, Column("currency", String(3), primary_key=True), Column("rate", Numeric(12, 6)))


@task(CHECKSUM)
def checksum(payload: dict[str, Any]) -> None:
    """A little work for the processor, no database."""
    digest = str(payload["number"]).encode()
    for _ in range(500):
        digest = hashlib.sha256(digest).digest()


@task(RECEIPT)
def receipt(payload: dict[str, Any], session: TaskSession) -> None:
    """Write a row; it is committed together with the job's completion."""
    session.execute(insert(receipts).values(job_id=current_job().id, text=f"receipt {payload['number']}"))


@task(WEBHOOK, max_attempts=3, backoff=0.3)
def webhook(payload: dict[str, Any]) -> None:
    """Fail twice, as a server that is starting would, then succeed."""
    if current_job().attempts < 3:
        raise ConnectionError(f"shop {payload['number']} answered 503, come back later")


@task(CHARGE, idempotent_on=lambda payload: payload["invoice"])
def charge(payload: dict[str, Any], session: TaskSession) -> None:
    """Charge an invoice once, however often it is asked to."""
    session.execute(insert(charges).values(invoice=payload["invoice"], job_id=current_job().id))


@task(CONVERT, max_attempts=2, backoff=0.3)
def convert(payload: dict[str, Any], session: TaskSession) -> None:
    """Fail until somebody has put the currency's rate into the table."""
    currency = payload["currency"]
    if session.scalar(select(rates.c.rate).where(rates.c.currency == currency)) is None:
        raise LookupError(f"there is no exchange rate for {currency}")
