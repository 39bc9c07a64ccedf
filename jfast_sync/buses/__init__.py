"""Where events for other services go: one module per kind of bus, behind :class:`jfast_sync.ports.EventBus`."""
