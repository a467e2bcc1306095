"""Variants of an engine, run on one trace and compared.

`variants` reads what a variant is, `run` runs all of them; what is said of their figures is decided in
`report/compare_*`. docs/compare.md tells what a verdict means.
"""
