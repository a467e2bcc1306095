"""Compiled core: allocator, scheduler passes, timing, driver machine, event records."""
