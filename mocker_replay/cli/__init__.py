"""The command line: one file a verb, options and rendering only."""
