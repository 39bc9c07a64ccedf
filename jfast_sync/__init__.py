"""Background jobs, a transactional outbox, schedules and events for synchronous Python."""
