"""Handoffs of live engines: from the engine that computed a prompt to the one that decodes it.

`control` is what a caller of one engine holds; `sessions` pairs two engines and carries a handoff through by itself.
"""
