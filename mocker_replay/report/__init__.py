"""From collected columns to summary, per-request records, telemetry samples and a page for people."""
