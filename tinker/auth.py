"""Check whether a credential is set and works, for launchers that test this at startup."""

from __future__ import annotations

from tinker._basics.config import load_config
from tinker._http import auth, retry
from tinker._runtime import open_runtime
from tinker._session import Description
from tinker.errors import TinkerError
from tinker.rest_client import RestClient

__all__ = ["get_tinker_token", "raise_if_tinker_not_accessible", "tinker_has_credentials"]


def get_tinker_token() -> str | None:
    """Return the key that a new client would use. Sends no request.

    It is the key of ``TINKER_API_KEY`` or, for the hosted service, the stored key.

    Returns:
        The key; None if there is no key, if a command (``TINKER_CREDENTIAL_CMD``) provides the
            credential (the command is not run), or if the settings or the stored keys cannot be
            read.

    >>> tinker_has_credentials() if get_tinker_token() else True
    True
    """
    try:
        config = load_config()
        stored = (
            None
            if config.api_key or not config.is_hosted
            else auth.default_key(config.credentials_file)
        )
    except (TinkerError, ValueError):
        return None
    return config.api_key or (None if stored is None else stored[1].key)


def tinker_has_credentials() -> bool:
    """Return whether a new client would have a credential: a key, or a command that prints one.
    Sends no request.

    Servers other than the hosted service may not require a credential.
    """
    if get_tinker_token() is not None:
        return True
    try:
        return load_config().credential_cmd is not None
    except ValueError:
        return False


def raise_if_tinker_not_accessible() -> None:
    """Request the server's list of models once, without retries, and block until the response
    arrives.

    Raises:
        TinkerError: The request failed, for example with an APIConnectionError or an
            AuthenticationError.
    """
    try:
        config = load_config(patience_seconds=retry.ONE_SHOT.total_seconds)
        RestClient(
            open_runtime(config, Description(user_metadata={}))
        ).get_server_capabilities().result()
    except TinkerError:
        raise
    except Exception as error:
        raise TinkerError(f"{type(error).__name__}: {error}") from error
