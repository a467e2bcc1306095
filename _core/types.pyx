"""Errors of the core. They carry facts only; the package above turns them into its own tree."""


class EngineError(Exception):
    """A pass cannot be computed: a duration out of range, a broken invariant. The engine is poisoned."""


class CommandError(Exception):
    """A command that is refused; it changed nothing and the engine stays usable."""


class LivelockError(EngineError):
    """Passes go on for ever without any effect."""
