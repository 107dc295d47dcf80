"""RestClient: the runs, checkpoints and sessions that the server stores. It does not open a
session.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urljoin

from tinker_wire import models
from tinker_wire.api import service as service_api
from tinker_wire.api import weights as weights_api
from tinker_wire.clients import RestOperations
from tinker_wire.runtime import Request

from tinker._basics.checks import warn
from tinker._http import retry
from tinker._http.auth import read_claims
from tinker._loop import Clock
from tinker._runtime import awaiting_twin
from tinker._validate import read_ttl
from tinker.admin_client import AdminMethods
from tinker.errors import (
    APIStatusError,
    ExperimentalWarning,
    RequestFailedError,
    UnknownIdentityError,
)
from tinker.futures import APIFuture
from tinker.types.params import ParsedCheckpointTinkerPath
from tinker.types.results import WhoamiResponse
from tinker_records import suggest_arguments

if TYPE_CHECKING:
    import httpx

logger: logging.Logger = logging.getLogger("tinker")

# A trace is asked for again after this long, and given up after that long: a day's session is
# written in minutes.
TRACE_POLL_SECONDS = 5.0
TRACE_SECONDS = 1800.0
# How long a signed archive URL is taken to hold where the server does not say.
_ARCHIVE_URL_SECONDS = 900.0

_parse_path = ParsedCheckpointTinkerPath.from_tinker_path


@suggest_arguments
class RestClient(AdminMethods, RestOperations):
    """Client for the runs, checkpoints and sessions that the server stores.

    Every method checks its arguments and returns a future at once. A request is retried for a
    minute if a retry can help. A future raises NotFoundError if the server does not have the item
    or does not support the operation (some servers return 405, which raises APIStatusError). Each
    ``*_async`` method is a coroutine that returns the final result.

    A checkpoint is named by its path, ``tinker://<training run>/<kind>/<name>``, or by the run's id
    and the checkpoint id ``<kind>/<name>``. The ``access_scope`` "owned" selects your own items,
    "accessible" all items that you may see.

    Creating a client sends no request.

    Args:
        base_url: The address of the server, as for ServiceClient.
        api_key: The credential, as for ServiceClient.
        transport: An httpx transport to use instead of real connections. Optional.
        clock: The source of time, which tests replace. None means the system clock.

    >>> models = (
    ...     RestClient(base_url="local://toy")
    ...     .get_server_capabilities()
    ...     .result(timeout=30)
    ...     .supported_models
    ... )
    >>> models[0].model_name
    'tinker/toy'
    """

    _suggestions: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("list_models", "models"),
            "get_server_capabilities(), whose result has supported_models",
        ),
        **dict.fromkeys(("list_runs", "runs"), "list_training_runs()"),
        "get_run": "get_training_run(training_run_id)",
        **dict.fromkeys(
            ("checkpoints", "list_all_checkpoints"),
            "list_user_checkpoints() or list_checkpoints(training_run_id)",
        ),
        "get_checkpoint": (
            "get_weights_info_by_tinker_path(path) or list_checkpoints(training_run_id)"
        ),
        **dict.fromkeys(("download", "download_checkpoint"), "tinker.checkpoints.download(path)"),
        **dict.fromkeys(("upload", "upload_checkpoint"), "tinker.checkpoints.upload(folder)"),
        **dict.fromkeys(
            ("delete_run", "delete_training_run"),
            "delete_checkpoint_from_tinker_path(path) of each checkpoint",
        ),
    }

    # -------------------------------------------------------------------------------------- service

    def whoami(self) -> APIFuture[WhoamiResponse]:
        """Get the owner of the credential, according to its token.

        Returns:
            A future of the user and the organization.

        Raises:
            UnknownIdentityError: From the future, if the server issues no tokens that name an
                owner. It is also a RuntimeError.
        """
        return self._rest.run("whoami", self._whoami)

    async def _whoami(self) -> WhoamiResponse:
        runtime = await self._rest.ready()
        credential = await runtime.transport.auth.credential()
        claims = read_claims("" if credential is None else credential.secret)
        if claims.sub is None or claims.org_id is None:
            raise UnknownIdentityError("whoami: this server does not say who owns a key")
        organization = f"tml:organization:{claims.org_id}"
        return WhoamiResponse(user_urn=claims.sub, org_urn=organization, email=claims.email or None)

    # ---------------------------------------------------------------------------------- checkpoints

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[str]:
        """Copy a checkpoint into a project. The copy is a new run, which cannot be trained further.

        Retries do not create a second copy.

        Args:
            path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.
            destination_project_id: The project; None means the client's (``TINKER_PROJECT_ID``).
            ttl_seconds: Seconds until the copy expires, an hour to ten years. None keeps it
                forever.
            weights_access_token: A token that grants access to another user's checkpoint, sent in a
                header and kept out of errors and logs. Optional.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of the path of the copy.

        Raises:
            ValueError: At once, if there is no project, or the path or time is invalid.
        """
        project = destination_project_id or self._rest.runtime.config.project_id
        if not project:
            raise ValueError(
                "copy_weights needs a project: pass destination_project_id or set TINKER_PROJECT_ID"
            )
        body = models.CopyWeightsRequest(
            destination_project_id=project,
            source_path=_parse_path(path).tinker_path,
            ttl_seconds=read_ttl(ttl_seconds),
        )
        request = weights_api.copy_weights(body, x_tinker_weights_access_token=weights_access_token)
        request = request.with_options(extra_headers, timeout)

        async def copy() -> str:
            return (await self._rest.answer(request)).tinker_path

        return self._rest.run("copy_weights", copy, request)

    def get_checkpoint_archive_url(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.CheckpointArchiveUrlResponse]:
        """Get a signed URL of the checkpoint as one archive, and the time when the URL expires.

        Only older servers have archives; on others the future raises NotFoundError. While the
        server prepares the archive, the client retries for up to ten minutes.

        Args:
            training_run_id: The run that the checkpoint belongs to.
            checkpoint_id: The checkpoint within the run, ``<kind>/<name>``.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of the URL and the time.

        Raises:
            ValueError: At once, for an invalid argument.
        """
        request = weights_api.get_checkpoint_archive(
            training_run_id=training_run_id, checkpoint_id=checkpoint_id
        )
        request = request.with_options(extra_headers, timeout)

        async def url() -> models.CheckpointArchiveUrlResponse:
            transport = (await self._rest.ready()).transport
            try:
                return (await transport.send(request, retry.ARCHIVE, follow_redirects=False)).value
            except APIStatusError as error:
                if "location" not in error.response.headers:
                    raise
                return _read_archive_redirect(
                    str(error.request.url), error.response.headers, transport.clock
                )

        return self._rest.run("get_checkpoint_archive_url", url, request)

    def get_checkpoint_archive_url_from_tinker_path(
        self,
        tinker_path: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.CheckpointArchiveUrlResponse]:
        """Get a signed URL of the checkpoint at a path, as :meth:`get_checkpoint_archive_url` does.

        Args:
            tinker_path: The checkpoint, ``tinker://<training run>/<kind>/<name>``.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of the URL and the time.

        Raises:
            ValueError: At once, if the text is not a checkpoint path.
        """
        path = _parse_path(tinker_path)
        return self.get_checkpoint_archive_url(
            path.training_run_id, path.checkpoint_id, extra_headers=extra_headers, timeout=timeout
        )

    def search_checkpoints(
        self,
        request: models.CheckpointSearchRequest,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.CheckpointSearchResponse]:
        """Find the checkpoints that meet every condition of a request, newest first.

        The operation may change without notice, so it warns with ExperimentalWarning.

        Args:
            request: The conditions. Its ``cursor`` is the ``next_cursor`` of the previous page.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of one page of checkpoints.
        """
        warn("RestClient.search_checkpoints may change without notice", ExperimentalWarning)
        return self._rest.ask(
            weights_api.search_checkpoints(request).with_options(extra_headers, timeout)
        )

    # ------------------------------------------------------------------------------------- sessions

    def search_sessions(
        self,
        request: models.SessionSearchRequest,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.SessionSearchResponse]:
        """Find the sessions that meet every condition of a request, newest first.

        The operation may change without notice, so it warns with ExperimentalWarning.

        Args:
            request: The conditions. Its ``cursor`` is the ``next_cursor`` of the previous page.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of one page of sessions.
        """
        warn("RestClient.search_sessions may change without notice", ExperimentalWarning)
        return self._rest.ask(
            service_api.search_sessions(request).with_options(extra_headers, timeout)
        )

    def export_session_trace(
        self,
        session_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[str]:
        """Get a signed URL of the session's timing trace, for Perfetto; it is valid for about an
        hour.

        The server writes the trace first. The client polls every 5 s for up to half an hour, or as
        long as ``timeout`` says.

        Args:
            session_id: The session that was traced.
            extra_headers: Headers of this call only. They replace the client's of the same name, in
                any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError
                after it.

        Returns:
            A future of the URL.

        Raises:
            TimeoutError: From the future, if the trace is not ready after half an hour. With
                ``timeout``, APITimeoutError.
            RequestFailedError: From the future, if the server cannot write the trace.
        """
        request = service_api.trace_export(session_id=session_id).with_options(
            extra_headers, timeout
        )
        return self._rest.run(
            "export_session_trace", partial(self._trace, session_id, request), request
        )

    async def _trace(self, session_id: str, request: Request[models.TraceExportResponse]) -> str:
        clock, longest = self._rest.runtime.clock, request.timeout_seconds or TRACE_SECONDS
        started = clock.monotonic()
        while True:
            answer = await self._rest.answer(request)
            if answer.status == "ready" and answer.url is not None:
                return answer.url
            if answer.status == "failed":
                reason = answer.error or "the server gave no reason"
                raise RequestFailedError(
                    f"export_session_trace of {session_id} failed: {reason}", session_id, "server"
                )
            waited = clock.monotonic() - started
            if waited >= longest:
                raise TimeoutError(
                    f"the trace of {session_id} is {answer.status} after {waited:.0f} "
                    "s; try again later"
                )
            if waited == 0:
                logger.warning(
                    "the server is writing the trace of %s; polling every %g s",
                    session_id,
                    TRACE_POLL_SECONDS,
                )
            await self._rest.runtime.transport.sleep(TRACE_POLL_SECONDS)

    # -------------------------------------------------------------------------- twins of older code

    copy_weights_async: Final = awaiting_twin(copy_weights)
    get_checkpoint_archive_url_async: Final = awaiting_twin(get_checkpoint_archive_url)
    get_checkpoint_archive_url_from_tinker_path_async: Final = awaiting_twin(
        get_checkpoint_archive_url_from_tinker_path
    )
    export_session_trace_async: Final = awaiting_twin(export_session_trace)


def _read_archive_redirect(
    asked: str, headers: httpx.Headers, clock: Clock
) -> models.CheckpointArchiveUrlResponse:
    """Read the URL of an archive from a redirect. Its ``Expires`` is a date on the
    server's clock.
    """
    from email.utils import parsedate_to_datetime

    try:
        expires = parsedate_to_datetime(headers.get("expires", ""))
    except ValueError:
        expires = datetime.datetime.fromtimestamp(clock.wall() + _ARCHIVE_URL_SECONDS, datetime.UTC)
    return models.CheckpointArchiveUrlResponse(
        url=urljoin(asked, headers["location"]), expires=expires
    )
