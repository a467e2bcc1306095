# Compiled callers only; nothing of it is seen from Python.
