"""Which form training requests take on one server: protobuf or JSON. Results are told apart by their media type."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tinker._config import WireChoice
from tinker._retry import UNREADABLE_STATUSES
from tinker.errors import APIStatusError

Form: TypeAlias = Literal["proto", "json"]


class Negotiation:
    """The form in use. An explicit choice is never changed.

    Otherwise a server that answers the client configuration gets protobuf (servers of both are of the same age), one that
    does not gets JSON; a refusal before the first success switches to the other form, once.
    """

    def __init__(self, choice: WireChoice) -> None:
        self._fixed = choice != "auto"
        self.form: Form = "json" if choice == "json" else "proto"

    def config_answered(self, answered: bool) -> None:
        """The server did or did not answer the client configuration."""
        if not self._fixed:
            self.form = "proto" if answered else "json"

    def succeeded(self) -> None:
        """The server accepted a request of the present form, so it stays."""
        self._fixed = True

    def switched(self, error: APIStatusError) -> bool:
        """Whether to send the refused request again, in the other form."""
        if self._fixed or error.status_code not in UNREADABLE_STATUSES:
            return False
        self._fixed = True
        self.form = "json" if self.form == "proto" else "proto"
        return True
