"""Which form training requests take on one server: protobuf or JSON, with sparse tensors or without.

Results are told apart by their media type.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs

from tinker._config import WireChoice
from tinker._retry import UNREADABLE_STATUSES
from tinker.errors import APIStatusError

Media: TypeAlias = Literal["proto", "json"]


@attrs.frozen
class Form:
    """How one request is written. ``sparse`` says that sparse tensors may stay so."""

    media: Media
    sparse: bool = True


class Negotiation:
    """The form in use. An explicit choice of protobuf or JSON is never changed.

    Otherwise a server that answers the client configuration gets protobuf (servers of both are of the same age), one that
    does not gets JSON. A refused request may be repeated in another form, until the first success settles it; sparse tensors
    may turn out to be unread later too.
    """

    def __init__(self, choice: WireChoice) -> None:
        self._media_settled = choice != "auto"
        self.form = Form("json" if choice == "json" else "proto")

    def config_answered(self, answered: bool) -> None:
        """The server did or did not answer the client configuration."""
        if not self._media_settled:
            self.form = Form("proto" if answered else "json")

    def settle(self, form: Form, *, sparse_seen: bool) -> None:
        """The server accepted a request of this form; whether it reads sparse tensors is known once it saw some."""
        self._media_settled = True
        self.form = form if sparse_seen or not form.sparse else Form(form.media, self.form.sparse)

    def alternatives(self, error: APIStatusError, form: Form, *, has_sparse: bool) -> Iterator[Form]:
        """Other forms in which a refused request may be read, the likeliest first."""
        if error.status_code not in UNREADABLE_STATUSES:
            return
        if has_sparse and form.sparse:
            yield Form(form.media, sparse=False)
        if not self._media_settled:
            other: Media = "json" if form.media == "proto" else "proto"
            yield Form(other, form.sparse)
