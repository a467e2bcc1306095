"""Event logs: writing, reading back, digest. The fields of a line are defined in docs/event-log.md."""
