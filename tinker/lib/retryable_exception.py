"""A path that older code imports from."""


class RetryableException(Exception):
    """Nothing here raises it; code that catches it, or names it in a ``RetryConfig``, goes on working."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
