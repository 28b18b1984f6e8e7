"""How a check fails: one complete sentence, as an AssertionError."""

from __future__ import annotations


class ConformanceError(AssertionError):
    """A scheduler, placer, backend, speed model or topology breaks its protocol."""


def require(holds: object, sentence: str) -> None:
    """Raise unless `holds`.

    Raises
    ------
    ConformanceError
        With the sentence.
    """
    if not holds:
        raise ConformanceError(sentence)


def name_of(thing: object) -> str:
    """Return what to call something in a sentence.

    >>> name_of(3)
    'int'
    """
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__
