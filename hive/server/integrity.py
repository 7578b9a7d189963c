"""What the checks of caches' books raise: for tests, and for whoever hunts a leak."""


class IntegrityError(AssertionError):
    """The books do not agree with what they are about."""
