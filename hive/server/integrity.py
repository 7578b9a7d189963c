"""The exception that consistency checks of the caches raise, in tests and under ``/hive/check``."""


class IntegrityError(Exception):
    """The accounting of a cache does not agree with its contents."""


def expect(holds: object, problem: str) -> None:
    """Raise :class:`IntegrityError` unless ``holds`` is truthy; works under ``python -O``, unlike ``assert``."""
    if not holds:
        raise IntegrityError(problem)
