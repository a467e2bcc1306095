"""Shells wait and feed stimuli to the driver machine; they never decide."""
