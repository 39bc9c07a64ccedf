"""``jfast-sync doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import dataclasses

import click

from jfast_sync_cli.exits import Exit
from jfast_sync_cli.frame import Invocation
from jfast_sync_cli.options import json_option, project_options
from jfast_sync_cli.show import plain, print_json

__all__ = ["doctor"]

_MARKS = {"ok": "ok   ", "warn": "warn ", "fail": "FAIL "}
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@json_option
@project_options
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this project from Python to the server: each line says ok, warn or FAIL, with the fix.

    Exit code 1 where something fails.
    """
    from jfast_sync_cli.checks import examine

    invocation: Invocation = ctx.obj
    findings = []
    for finding in examine(invocation):
        findings.append(finding)
        if not as_json:
            mark = click.style(_MARKS[finding.status], fg=_COLOURS[finding.status])
            click.echo(f"{mark} {finding.name:<9} {plain(' '.join(finding.detail.split()))}")
            if finding.fix:
                click.echo(f"                fix: {plain(finding.fix)}")
    failed = sum(finding.status == "fail" for finding in findings)
    if as_json:
        print_json({"healthy": not failed, "checks": [dataclasses.asdict(finding) for finding in findings]})
    elif failed:
        click.echo(f"\n{failed} problem{'' if failed == 1 else 's'} found.")
    if failed:
        ctx.exit(Exit.PROBLEMS)
