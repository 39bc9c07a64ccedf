"""Where jobs wait: one module per backend, each an implementation of :class:`jfast_sync.ports.Queue`.

Nothing is imported here, so that a driver is loaded only where its backend is chosen.
"""

from __future__ import annotations
