"""What the checks of the caches raise: for tests, and for whoever looks for a leak."""


class IntegrityError(Exception):
    """The accounting of a cache does not agree with what the cache holds."""


def expect(holds: object, problem: str) -> None:
    """Raise :class:`IntegrityError` unless ``holds`` is truthy; ``python -O`` keeps it, unlike an ``assert``."""
    if not holds:
        raise IntegrityError(problem)
