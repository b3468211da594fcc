"""The one error of this package."""


class ReleaseError(Exception):
    """A release cannot be made; the message says what was expected, what was found and where."""
