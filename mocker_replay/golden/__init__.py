"""Goldens: blessed runs, kept in a folder of a user's repository, and held against fresh ones.

`record` blesses a run, `check` runs it afresh and compares, `update` blesses what has changed. docs/goldens.md tells
what a golden consists of.
"""
