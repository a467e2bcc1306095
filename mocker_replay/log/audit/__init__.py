"""A log checked on its own: every rule that docs/event-log.md implies, by code that shares nothing with the engine."""
