"""RestClient: what the server keeps: runs, checkpoints and sessions. It needs no session of its own."""

from __future__ import annotations

import datetime
import email.utils
import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._clock import Clock
from tinker._http import ARCHIVE, read_claims
from tinker._rest import Rest, open_rest
from tinker._runtime import Runtime
from tinker._validate import check_access_scope, check_page, check_ttl
from tinker.admin_client import AdminClient
from tinker.errors import APIStatusError, ExperimentalWarning, RequestFailedError, UnknownIdentityError
from tinker.futures import APIFuture
from tinker.types.paths import ParsedCheckpointTinkerPath
from tinker.types.whoami import WhoamiResponse

if TYPE_CHECKING:
    import httpx

    from tinker._session import Telemetry

logger: logging.Logger = logging.getLogger("tinker")

# A trace is asked for again after this long, and given up after that long: a day's session is written in minutes.
TRACE_POLL_SECONDS = 5.0
TRACE_SECONDS = 1800.0
# How long a signed archive URL is taken to hold where the server does not say.
_ARCHIVE_URL_SECONDS = 900.0

_parsed = ParsedCheckpointTinkerPath.from_tinker_path


class RestClient:
    """Reads and writes of what the server keeps. Arguments as those of ServiceClient; constructing it sends nothing.

    Every method checks its arguments and returns a future at once; ValueError on the caller's line for an id, a path or a
    number that cannot be right. A call is tried for a minute where trying again can help. NotFoundError means that the server
    does not have what is asked, or does not know the operation at all (some say that with APIStatusError 405). Each
    ``*_async`` twin is a coroutine that gives the final result.

    A checkpoint is named by its path, ``tinker://<training run>/<kind>/<name>``, or by the run's id and ``<kind>/<name>``, the
    checkpoint id. ``access_scope`` "owned" is about what belongs to the user, "accessible" about everything the user may see.

    >>> models = RestClient(base_url="local://toy").get_server_capabilities().result(timeout=30).supported_models
    >>> models[0].model_name
    'tinker/toy'
    """

    def __init__(
        self,
        _holder: Runtime | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._rest: Rest = open_rest(_holder, base_url=base_url, api_key=api_key, transport=transport, clock=clock)

    # -------------------------------------------------------------------------------------------------------------- service

    def get_server_capabilities(self) -> APIFuture[models.GetServerCapabilitiesResponse]:
        """Which base models the server offers."""
        return self._rest.ask(service_api.get_server_capabilities())

    def whoami(self) -> APIFuture[WhoamiResponse]:
        """Whose credential this is, as its token says. UnknownIdentityError, which is a RuntimeError too, where the server
        gives no tokens that say it.
        """
        return self._rest.run("whoami", self._whoami)

    async def _whoami(self) -> WhoamiResponse:
        runtime = await self._rest.ready()
        credential = await runtime.transport.auth.credential()
        claims = read_claims("" if credential is None else credential.secret)
        if claims.sub is None or claims.org_id is None:
            raise UnknownIdentityError("whoami: this server takes the key as it is, and nothing in a key says whose it is")
        organization = f"tml:organization:{claims.org_id}"
        return WhoamiResponse(user_urn=claims.sub, org_urn=organization, email=claims.email or None)

    # -------------------------------------------------------------------------------------------------------- training runs

    def get_training_run(
        self, training_run_id: str, access_scope: models.AccessScope = "owned"
    ) -> APIFuture[models.TrainingRun]:
        """One training run."""
        check_access_scope(access_scope)
        return self._rest.ask(training_api.get_training_run(training_run_id=training_run_id, access_scope=access_scope))

    def get_training_run_by_tinker_path(
        self, tinker_path: str, access_scope: models.AccessScope = "owned"
    ) -> APIFuture[models.TrainingRun]:
        """The training run that a checkpoint is of."""
        return self.get_training_run(_parsed(tinker_path).training_run_id, access_scope)

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: models.AccessScope = "owned",
        project_id: str | None = None,
    ) -> APIFuture[models.TrainingRunsResponse]:
        """A page of training runs, and in ``cursor`` how many there are; those of every project for ``project_id`` None."""
        check_page(limit, offset)
        check_access_scope(access_scope)
        return self._rest.ask(
            training_api.list_training_runs(limit=limit, offset=offset, access_scope=access_scope, project_id=project_id)
        )

    # ---------------------------------------------------------------------------------------------------------- checkpoints

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> APIFuture[models.WeightsInfoResponse]:
        """From which base model, and with which adapter, a checkpoint was made. The path is the server's to judge."""
        return self._rest.ask(weights_api.weights_info(models.WeightsInfoRequest(tinker_path=tinker_path)))

    def list_checkpoints(self, training_run_id: str) -> APIFuture[models.CheckpointsListResponse]:
        """All checkpoints of one run."""
        return self._rest.ask(weights_api.list_checkpoints(training_run_id=training_run_id))

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> APIFuture[models.CheckpointsListResponse]:
        """A page of the checkpoints of all runs, newest first."""
        check_page(limit, offset)
        return self._rest.ask(weights_api.list_user_checkpoints(limit=limit, offset=offset))

    def delete_checkpoint(self, training_run_id: str, checkpoint_id: str) -> APIFuture[None]:
        """Delete a checkpoint for good; ``checkpoint_id`` is ``<kind>/<name>``."""
        return self._rest.ask(weights_api.delete_checkpoint(training_run_id=training_run_id, checkpoint_id=checkpoint_id))

    def delete_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """:meth:`delete_checkpoint` by path."""
        path = _parsed(tinker_path)
        return self.delete_checkpoint(path.training_run_id, path.checkpoint_id)

    def publish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Let everybody load and sample the checkpoint; ConflictError when they can already."""
        path = _parsed(tinker_path)
        return self._rest.ask(
            weights_api.publish_checkpoint(training_run_id=path.training_run_id, checkpoint_id=path.checkpoint_id)
        )

    def unpublish_checkpoint_from_tinker_path(self, tinker_path: str) -> APIFuture[None]:
        """Make a public checkpoint private again; ConflictError when it is."""
        path = _parsed(tinker_path)
        return self._rest.ask(
            weights_api.unpublish_checkpoint(training_run_id=path.training_run_id, checkpoint_id=path.checkpoint_id)
        )

    def set_checkpoint_ttl_from_tinker_path(self, tinker_path: str, ttl_seconds: int | None) -> APIFuture[None]:
        """Let the checkpoint expire so many seconds from now, an hour to ten years; None keeps it for ever."""
        path = _parsed(tinker_path)
        check_ttl(ttl_seconds)
        return self._rest.ask(
            weights_api.set_checkpoint_ttl(
                models.SetCheckpointTtlRequest(ttl_seconds=ttl_seconds),
                training_run_id=path.training_run_id,
                checkpoint_id=path.checkpoint_id,
            )
        )

    def copy_weights(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> APIFuture[str]:
        """Copy a checkpoint into a project, as a run of its own that cannot be trained on; gives the copy's path.

        The project is ``destination_project_id``, else the client's (``TINKER_PROJECT_ID``); ValueError without either.
        ``weights_access_token`` opens somebody else's checkpoint; it travels in a header and stays out of errors and logs.
        However often the request has to be sent, there is one copy.
        """
        project = destination_project_id or self._rest.runtime.config.project_id
        if not project:
            raise ValueError("copy_weights needs destination_project_id, or TINKER_PROJECT_ID in the environment")
        check_ttl(ttl_seconds)
        body = models.CopyWeightsRequest(
            destination_project_id=project, source_path=_parsed(path).tinker_path, ttl_seconds=ttl_seconds
        )
        request = weights_api.copy_weights(body, x_tinker_weights_access_token=weights_access_token)

        async def copied() -> str:
            return (await self._rest.answer(request)).tinker_path

        return self._rest.run("copy_weights", copied)

    def get_external_weights_urls(self, tinker_path: str) -> APIFuture[models.ExternalWeightsUrlsResponse]:
        """Signed URLs of the files of an external checkpoint, by file name, and until when they hold.

        They are fetched without credentials. ValueError for a checkpoint of another kind.
        """
        path = _parsed(tinker_path)
        if path.checkpoint_type != "external":
            raise ValueError(f"{tinker_path} is not of the kind external_weights; save_weights_external makes those")
        return self._rest.ask(
            weights_api.get_external_weights_urls(training_run_id=path.training_run_id, checkpoint_id=path.checkpoint_id)
        )

    def get_checkpoint_archive_url(
        self, training_run_id: str, checkpoint_id: str
    ) -> APIFuture[models.CheckpointArchiveUrlResponse]:
        """A signed URL of the checkpoint as one archive, and until when it holds.

        Only servers of the old kind have it: NotFoundError elsewhere. While the server prepares the archive it is asked again,
        for ten minutes.
        """
        request = weights_api.get_checkpoint_archive(training_run_id=training_run_id, checkpoint_id=checkpoint_id)

        async def url() -> models.CheckpointArchiveUrlResponse:
            transport = (await self._rest.ready()).transport
            try:
                return (await transport.send(request, ARCHIVE, follow_redirects=False)).value
            except APIStatusError as error:
                if "location" not in error.response.headers:
                    raise
                return _redirected_archive(str(error.request.url), error.response.headers, transport.clock)

        return self._rest.run("get_checkpoint_archive_url", url)

    def get_checkpoint_archive_url_from_tinker_path(self, tinker_path: str) -> APIFuture[models.CheckpointArchiveUrlResponse]:
        """:meth:`get_checkpoint_archive_url` by path."""
        path = _parsed(tinker_path)
        return self.get_checkpoint_archive_url(path.training_run_id, path.checkpoint_id)

    # ------------------------------------------------------------------------------------------------------------- sessions

    def get_session(self, session_id: str, access_scope: models.AccessScope = "owned") -> APIFuture[models.GetSessionResponse]:
        """The training runs and samplers of one session, and what its user said about it."""
        check_access_scope(access_scope)
        return self._rest.ask(service_api.get_session(session_id=session_id, access_scope=access_scope))

    def list_sessions(
        self, limit: int = 20, offset: int = 0, access_scope: models.AccessScope = "owned"
    ) -> APIFuture[models.ListSessionsResponse]:
        """A page of session ids, newest first."""
        check_page(limit, offset)
        check_access_scope(access_scope)
        return self._rest.ask(service_api.list_sessions(limit=limit, offset=offset, access_scope=access_scope))

    def search_sessions(self, request: models.SessionSearchRequest) -> APIFuture[models.SessionSearchResponse]:
        """Sessions that meet every condition of ``request``, newest first; its ``cursor`` is the ``next_cursor`` of the page
        before. May change without notice, so it warns with ExperimentalWarning.
        """
        warnings.warn("RestClient.search_sessions may change without notice", ExperimentalWarning, stacklevel=2)
        return self._rest.ask(service_api.search_sessions(request))

    def assign_session_project(self, session_id: str, project_id: str) -> APIFuture[None]:
        """Move a session, with its runs and checkpoints, into a project."""
        body = models.SetSessionProjectRequest(project_id=project_id)
        return self._rest.ask(service_api.set_session_project(body, session_id=session_id))

    def export_session_trace(self, session_id: str) -> APIFuture[str]:
        """A signed URL of the session's timing trace, for Perfetto; it holds for about an hour.

        The server writes the trace first, and is asked every 5 s for half an hour; TimeoutError then. RequestFailedError when
        it cannot write it.
        """
        request = service_api.trace_export(session_id=session_id)
        return self._rest.run("export_session_trace", partial(self._trace, session_id, request))

    async def _trace(self, session_id: str, request: Request[models.TraceExportResponse]) -> str:
        clock = self._rest.runtime.clock
        started = clock.monotonic()
        while True:
            answer = await self._rest.answer(request)
            if answer.status == "ready" and answer.url is not None:
                return answer.url
            if answer.status == "failed":
                reason = answer.error or "the server gives no reason"
                raise RequestFailedError(f"export_session_trace of {session_id} failed: {reason}", session_id, "server")
            waited = clock.monotonic() - started
            if waited >= TRACE_SECONDS:
                raise TimeoutError(f"the trace of {session_id} is {answer.status} after {waited:.0f} s; ask again later")
            if waited == 0:
                logger.warning("the trace of %s is being written; asking every %g s", session_id, TRACE_POLL_SECONDS)
            await self._rest.runtime.transport.sleep(TRACE_POLL_SECONDS)

    def get_sampler(self, sampler_id: str) -> APIFuture[models.GetSamplerResponse]:
        """What a sampling session samples from."""
        return self._rest.ask(sampling_api.get_sampler(sampler_id=sampler_id))

    # ------------------------------------------------------------------------------------------- what AdminClient has by now

    def get_audit_log(
        self, event_type: models.AuditEventType = "all", day: datetime.date | None = None
    ) -> APIFuture[models.AuditLogResponse]:
        """As AdminClient.get_audit_log."""
        return AdminClient(self._rest.runtime).get_audit_log(event_type, day)

    def get_billing_usage(
        self, starting_on: datetime.datetime | str, ending_before: datetime.datetime | str
    ) -> APIFuture[models.BillingUsageResponse]:
        """As AdminClient.get_billing_usage."""
        return AdminClient(self._rest.runtime).get_billing_usage(starting_on, ending_before)

    def get_current_checkpoint_storage_usage(
        self, project_id: str | None = None
    ) -> APIFuture[models.CurrentCheckpointStorageUsageResponse]:
        """As AdminClient.get_current_checkpoint_storage_usage."""
        return AdminClient(self._rest.runtime).get_current_checkpoint_storage_usage(project_id)

    def get_telemetry(self) -> Telemetry | None:
        """As that of the ServiceClient whose connections these are; else None, as there is no session to report about."""
        return self._rest.runtime.telemetry

    # ------------------------------------------------------------------------------------------------- twins of older code

    async def get_training_run_async(
        self, training_run_id: str, access_scope: models.AccessScope = "owned"
    ) -> models.TrainingRun:
        """:meth:`get_training_run`, awaited to its result."""
        return await self.get_training_run(training_run_id, access_scope)

    async def get_training_run_by_tinker_path_async(
        self, tinker_path: str, access_scope: models.AccessScope = "owned"
    ) -> models.TrainingRun:
        """:meth:`get_training_run_by_tinker_path`, awaited to its result."""
        return await self.get_training_run_by_tinker_path(tinker_path, access_scope)

    async def list_training_runs_async(
        self, limit: int = 20, offset: int = 0, access_scope: models.AccessScope = "owned", project_id: str | None = None
    ) -> models.TrainingRunsResponse:
        """:meth:`list_training_runs`, awaited to its result."""
        return await self.list_training_runs(limit, offset, access_scope, project_id)

    async def list_checkpoints_async(self, training_run_id: str) -> models.CheckpointsListResponse:
        """:meth:`list_checkpoints`, awaited to its result."""
        return await self.list_checkpoints(training_run_id)

    async def list_user_checkpoints_async(self, limit: int = 100, offset: int = 0) -> models.CheckpointsListResponse:
        """:meth:`list_user_checkpoints`, awaited to its result."""
        return await self.list_user_checkpoints(limit, offset)

    async def delete_checkpoint_async(self, training_run_id: str, checkpoint_id: str) -> None:
        """:meth:`delete_checkpoint`, awaited to its result."""
        return await self.delete_checkpoint(training_run_id, checkpoint_id)

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """:meth:`delete_checkpoint_from_tinker_path`, awaited to its result."""
        return await self.delete_checkpoint_from_tinker_path(tinker_path)

    async def publish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """:meth:`publish_checkpoint_from_tinker_path`, awaited to its result."""
        return await self.publish_checkpoint_from_tinker_path(tinker_path)

    async def unpublish_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """:meth:`unpublish_checkpoint_from_tinker_path`, awaited to its result."""
        return await self.unpublish_checkpoint_from_tinker_path(tinker_path)

    async def set_checkpoint_ttl_from_tinker_path_async(self, tinker_path: str, ttl_seconds: int | None) -> None:
        """:meth:`set_checkpoint_ttl_from_tinker_path`, awaited to its result."""
        return await self.set_checkpoint_ttl_from_tinker_path(tinker_path, ttl_seconds)

    async def copy_weights_async(
        self,
        path: str,
        destination_project_id: str | None = None,
        *,
        ttl_seconds: int | None = None,
        weights_access_token: str | None = None,
    ) -> str:
        """:meth:`copy_weights`, awaited to its result."""
        return await self.copy_weights(
            path, destination_project_id, ttl_seconds=ttl_seconds, weights_access_token=weights_access_token
        )

    async def get_external_weights_urls_async(self, tinker_path: str) -> models.ExternalWeightsUrlsResponse:
        """:meth:`get_external_weights_urls`, awaited to its result."""
        return await self.get_external_weights_urls(tinker_path)

    async def get_checkpoint_archive_url_async(
        self, training_run_id: str, checkpoint_id: str
    ) -> models.CheckpointArchiveUrlResponse:
        """:meth:`get_checkpoint_archive_url`, awaited to its result."""
        return await self.get_checkpoint_archive_url(training_run_id, checkpoint_id)

    async def get_checkpoint_archive_url_from_tinker_path_async(self, tinker_path: str) -> models.CheckpointArchiveUrlResponse:
        """:meth:`get_checkpoint_archive_url_from_tinker_path`, awaited to its result."""
        return await self.get_checkpoint_archive_url_from_tinker_path(tinker_path)

    async def get_session_async(self, session_id: str, access_scope: models.AccessScope = "owned") -> models.GetSessionResponse:
        """:meth:`get_session`, awaited to its result."""
        return await self.get_session(session_id, access_scope)

    async def list_sessions_async(
        self, limit: int = 20, offset: int = 0, access_scope: models.AccessScope = "owned"
    ) -> models.ListSessionsResponse:
        """:meth:`list_sessions`, awaited to its result."""
        return await self.list_sessions(limit, offset, access_scope)

    async def assign_session_project_async(self, session_id: str, project_id: str) -> None:
        """:meth:`assign_session_project`, awaited to its result."""
        return await self.assign_session_project(session_id, project_id)

    async def export_session_trace_async(self, session_id: str) -> str:
        """:meth:`export_session_trace`, awaited to its result."""
        return await self.export_session_trace(session_id)

    async def get_sampler_async(self, sampler_id: str) -> models.GetSamplerResponse:
        """:meth:`get_sampler`, awaited to its result."""
        return await self.get_sampler(sampler_id)

    async def get_audit_log_async(
        self, event_type: models.AuditEventType = "all", day: datetime.date | None = None
    ) -> models.AuditLogResponse:
        """:meth:`get_audit_log`, awaited to its result."""
        return await self.get_audit_log(event_type, day)

    async def get_billing_usage_async(
        self, starting_on: datetime.datetime | str, ending_before: datetime.datetime | str
    ) -> models.BillingUsageResponse:
        """:meth:`get_billing_usage`, awaited to its result."""
        return await self.get_billing_usage(starting_on, ending_before)

    async def get_current_checkpoint_storage_usage_async(
        self, project_id: str | None = None
    ) -> models.CurrentCheckpointStorageUsageResponse:
        """:meth:`get_current_checkpoint_storage_usage`, awaited to its result."""
        return await self.get_current_checkpoint_storage_usage(project_id)


def _redirected_archive(asked: str, headers: httpx.Headers, clock: Clock) -> models.CheckpointArchiveUrlResponse:
    """What a redirect to the archive says; its ``Expires`` is a date of the server's clock."""
    try:
        expires = email.utils.parsedate_to_datetime(headers.get("expires", ""))
    except ValueError:
        expires = datetime.datetime.fromtimestamp(clock.wall() + _ARCHIVE_URL_SECONDS, datetime.UTC)
    return models.CheckpointArchiveUrlResponse(url=urljoin(asked, headers["location"]), expires=expires)
