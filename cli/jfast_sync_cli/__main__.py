"""``python -m jfast_sync_cli`` is ``jfast-sync``."""

from __future__ import annotations

from jfast_sync_cli.main import main

main()
