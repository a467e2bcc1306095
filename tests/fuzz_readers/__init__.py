"""Random bytes for every reader of traces."""
