"""Replay LLM request traces through mock inference engines, in virtual or real time."""

__version__ = "0.1.0"
