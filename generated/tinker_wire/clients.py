# generated from openapi.yaml; do not edit
"""Client methods for operations of the contract, each with its `_async` twin. They make requests; who inherits them sends."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from . import models
from .api import admin as admin_api
from .api import sampling as sampling_api
from .api import service as service_api
from .api import training as training_api
from .api import weights as weights_api
from .runtime import Request

if TYPE_CHECKING:
    from tinker.futures import APIFuture

T = TypeVar("T")


class Operations:
    """What the methods below need of the client that inherits them."""

    def _ask(self, request: Request[T]) -> APIFuture[T]:
        """Send a request; the future's result is its answer."""
        raise NotImplementedError

    def _check(self, **arguments: object) -> None:
        """Raise ValueError for an argument that cannot be right; called by name before there is a request."""
        raise NotImplementedError

    def _split_path(self, path: str, kind: str | None = None) -> Mapping[str, str]:
        """Return the path parameters that one argument holds; ValueError for a path that is not one, or not of the kind."""
        raise NotImplementedError


class RestOperations(Operations):
    """The methods of the client `rest`."""

    def get_server_capabilities(
        self, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.GetServerCapabilitiesResponse]:
        """List the base models of the server.

        Args:
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the server's response; `supported_models` lists the models.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        return self._ask(service_api.get_server_capabilities().with_options(extra_headers, timeout))

    def list_sessions(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.ListSessionsResponse]:
        """Get a page of session ids, newest first.

        Args:
            limit: The largest number of entries in the answer.
            offset: The number of entries to skip.
            access_scope: `owned` is what belongs to the user, `accessible` everything that the user may see.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the page.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(limit=limit, offset=offset, access_scope=access_scope)
        return self._ask(
            service_api.list_sessions(limit=limit, offset=offset, access_scope=access_scope).with_options(
                extra_headers, timeout
            )
        )

    async def list_sessions_async(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.ListSessionsResponse:
        """Await :meth:`list_sessions` and return its result."""
        return await self.list_sessions(limit, offset, access_scope, extra_headers=extra_headers, timeout=timeout)

    def get_session(
        self,
        session_id: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.GetSessionResponse]:
        """Get the training runs and samplers of one session, and the user's description of the session.

        Args:
            session_id: The session id.
            access_scope: `owned` is what belongs to the user, `accessible` everything that the user may see.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the session.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(session_id=session_id, access_scope=access_scope)
        return self._ask(
            service_api.get_session(session_id=session_id, access_scope=access_scope).with_options(
                extra_headers, timeout
            )
        )

    async def get_session_async(
        self,
        session_id: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.GetSessionResponse:
        """Await :meth:`get_session` and return its result."""
        return await self.get_session(session_id, access_scope, extra_headers=extra_headers, timeout=timeout)

    def assign_session_project(
        self,
        session_id: str,
        project_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Move a session, with its runs and checkpoints, into a project.

        Args:
            session_id: The session id.
            project_id: The project to move the session into.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(session_id=session_id, project_id=project_id)
        return self._ask(
            service_api.set_session_project(
                models.SetSessionProjectRequest(project_id=project_id), session_id=session_id
            ).with_options(extra_headers, timeout)
        )

    async def assign_session_project_async(
        self,
        session_id: str,
        project_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`assign_session_project` and return its result."""
        return await self.assign_session_project(session_id, project_id, extra_headers=extra_headers, timeout=timeout)

    def list_training_runs(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: models.AccessScope = "owned",
        project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.TrainingRunsResponse]:
        """Get a page of training runs, the most recently used first.

        Args:
            limit: The largest number of entries in the answer.
            offset: The number of entries to skip.
            access_scope: `owned` is what belongs to the user, `accessible` everything that the user may see.
            project_id: Only entries of this project; of every project where it is missing.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the page; its `cursor` has the number of runs.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(limit=limit, offset=offset, access_scope=access_scope, project_id=project_id)
        return self._ask(
            training_api.list_training_runs(
                limit=limit, offset=offset, access_scope=access_scope, project_id=project_id
            ).with_options(extra_headers, timeout)
        )

    async def list_training_runs_async(
        self,
        limit: int = 20,
        offset: int = 0,
        access_scope: models.AccessScope = "owned",
        project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.TrainingRunsResponse:
        """Await :meth:`list_training_runs` and return its result."""
        return await self.list_training_runs(
            limit, offset, access_scope, project_id, extra_headers=extra_headers, timeout=timeout
        )

    def get_training_run(
        self,
        training_run_id: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.TrainingRun]:
        """Get one training run.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            access_scope: `owned` is what belongs to the user, `accessible` everything that the user may see.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the run.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id, access_scope=access_scope)
        return self._ask(
            training_api.get_training_run(training_run_id=training_run_id, access_scope=access_scope).with_options(
                extra_headers, timeout
            )
        )

    async def get_training_run_async(
        self,
        training_run_id: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.TrainingRun:
        """Await :meth:`get_training_run` and return its result."""
        return await self.get_training_run(training_run_id, access_scope, extra_headers=extra_headers, timeout=timeout)

    def get_training_run_by_tinker_path(
        self,
        tinker_path: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.TrainingRun]:
        """Get the training run that a checkpoint belongs to.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            access_scope: `owned` is what belongs to the user, `accessible` everything that the user may see.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the run.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path)
        self._check(access_scope=access_scope)
        return self._ask(
            training_api.get_training_run(
                training_run_id=parts["training_run_id"], access_scope=access_scope
            ).with_options(extra_headers, timeout)
        )

    async def get_training_run_by_tinker_path_async(
        self,
        tinker_path: str,
        access_scope: models.AccessScope = "owned",
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.TrainingRun:
        """Await :meth:`get_training_run_by_tinker_path` and return its result."""
        return await self.get_training_run_by_tinker_path(
            tinker_path, access_scope, extra_headers=extra_headers, timeout=timeout
        )

    def get_weights_info_by_tinker_path(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.WeightsInfoResponse]:
        """Get the base model and the adapter that a checkpoint was made with.

        The server checks the path, not the client.

        Args:
            tinker_path: The checkpoint, `tinker://<training_run_id>/<kind>/<name>`.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the description of the weights.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(tinker_path=tinker_path)
        return self._ask(
            weights_api.weights_info(models.WeightsInfoRequest(tinker_path=tinker_path)).with_options(
                extra_headers, timeout
            )
        )

    def list_checkpoints(
        self, training_run_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.CheckpointsListResponse]:
        """Get all checkpoints of one run.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the list; its `cursor` is None.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id)
        return self._ask(
            weights_api.list_checkpoints(training_run_id=training_run_id).with_options(extra_headers, timeout)
        )

    async def list_checkpoints_async(
        self, training_run_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> models.CheckpointsListResponse:
        """Await :meth:`list_checkpoints` and return its result."""
        return await self.list_checkpoints(training_run_id, extra_headers=extra_headers, timeout=timeout)

    def list_user_checkpoints(
        self,
        limit: int = 100,
        offset: int = 0,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.CheckpointsListResponse]:
        """Get a page of the checkpoints of all runs, newest first.

        Args:
            limit: The largest number of entries in the answer.
            offset: The number of entries to skip.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the page.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(limit=limit, offset=offset)
        return self._ask(
            weights_api.list_user_checkpoints(limit=limit, offset=offset).with_options(extra_headers, timeout)
        )

    async def list_user_checkpoints_async(
        self,
        limit: int = 100,
        offset: int = 0,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.CheckpointsListResponse:
        """Await :meth:`list_user_checkpoints` and return its result."""
        return await self.list_user_checkpoints(limit, offset, extra_headers=extra_headers, timeout=timeout)

    def delete_checkpoint(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Delete a checkpoint permanently.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            checkpoint_id: `<kind>/<name>`: two segments, inserted as they are.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id, checkpoint_id=checkpoint_id)
        return self._ask(
            weights_api.delete_checkpoint(training_run_id=training_run_id, checkpoint_id=checkpoint_id).with_options(
                extra_headers, timeout
            )
        )

    async def delete_checkpoint_async(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`delete_checkpoint` and return its result."""
        return await self.delete_checkpoint(
            training_run_id, checkpoint_id, extra_headers=extra_headers, timeout=timeout
        )

    def delete_checkpoint_from_tinker_path(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[None]:
        """Delete the checkpoint at a path permanently.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path)
        return self._ask(
            weights_api.delete_checkpoint(
                training_run_id=parts["training_run_id"], checkpoint_id=parts["checkpoint_id"]
            ).with_options(extra_headers, timeout)
        )

    async def delete_checkpoint_from_tinker_path_async(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> None:
        """Await :meth:`delete_checkpoint_from_tinker_path` and return its result."""
        return await self.delete_checkpoint_from_tinker_path(tinker_path, extra_headers=extra_headers, timeout=timeout)

    def publish_checkpoint(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Make a checkpoint public, so that everybody can load and sample it.

        The future raises ConflictError when it is public already.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            checkpoint_id: `<kind>/<name>`: two segments, inserted as they are.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id, checkpoint_id=checkpoint_id)
        return self._ask(
            weights_api.publish_checkpoint(training_run_id=training_run_id, checkpoint_id=checkpoint_id).with_options(
                extra_headers, timeout
            )
        )

    async def publish_checkpoint_async(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`publish_checkpoint` and return its result."""
        return await self.publish_checkpoint(
            training_run_id, checkpoint_id, extra_headers=extra_headers, timeout=timeout
        )

    def publish_checkpoint_from_tinker_path(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[None]:
        """Make a checkpoint public, so that everybody can load and sample it.

        The future raises ConflictError when it is public already.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path)
        return self._ask(
            weights_api.publish_checkpoint(
                training_run_id=parts["training_run_id"], checkpoint_id=parts["checkpoint_id"]
            ).with_options(extra_headers, timeout)
        )

    async def publish_checkpoint_from_tinker_path_async(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> None:
        """Await :meth:`publish_checkpoint_from_tinker_path` and return its result."""
        return await self.publish_checkpoint_from_tinker_path(tinker_path, extra_headers=extra_headers, timeout=timeout)

    def unpublish_checkpoint(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Make a public checkpoint private again.

        The future raises ConflictError when it is private already.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            checkpoint_id: `<kind>/<name>`: two segments, inserted as they are.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id, checkpoint_id=checkpoint_id)
        return self._ask(
            weights_api.unpublish_checkpoint(training_run_id=training_run_id, checkpoint_id=checkpoint_id).with_options(
                extra_headers, timeout
            )
        )

    async def unpublish_checkpoint_async(
        self,
        training_run_id: str,
        checkpoint_id: str,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`unpublish_checkpoint` and return its result."""
        return await self.unpublish_checkpoint(
            training_run_id, checkpoint_id, extra_headers=extra_headers, timeout=timeout
        )

    def unpublish_checkpoint_from_tinker_path(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[None]:
        """Make a public checkpoint private again.

        The future raises ConflictError when it is private already.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path)
        return self._ask(
            weights_api.unpublish_checkpoint(
                training_run_id=parts["training_run_id"], checkpoint_id=parts["checkpoint_id"]
            ).with_options(extra_headers, timeout)
        )

    async def unpublish_checkpoint_from_tinker_path_async(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> None:
        """Await :meth:`unpublish_checkpoint_from_tinker_path` and return its result."""
        return await self.unpublish_checkpoint_from_tinker_path(
            tinker_path, extra_headers=extra_headers, timeout=timeout
        )

    def set_checkpoint_ttl(
        self,
        training_run_id: str,
        checkpoint_id: str,
        ttl_seconds: int | None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Set the time until a checkpoint expires, or keep it forever.

        Args:
            training_run_id: The model id of the run; `:` in it stays itself.
            checkpoint_id: `<kind>/<name>`: two segments, inserted as they are.
            ttl_seconds: Seconds from now, an hour to ten years. Null, which is sent, makes the checkpoint stay
                forever.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(training_run_id=training_run_id, checkpoint_id=checkpoint_id, ttl_seconds=ttl_seconds)
        return self._ask(
            weights_api.set_checkpoint_ttl(
                models.SetCheckpointTtlRequest(ttl_seconds=ttl_seconds),
                training_run_id=training_run_id,
                checkpoint_id=checkpoint_id,
            ).with_options(extra_headers, timeout)
        )

    async def set_checkpoint_ttl_async(
        self,
        training_run_id: str,
        checkpoint_id: str,
        ttl_seconds: int | None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`set_checkpoint_ttl` and return its result."""
        return await self.set_checkpoint_ttl(
            training_run_id, checkpoint_id, ttl_seconds, extra_headers=extra_headers, timeout=timeout
        )

    def set_checkpoint_ttl_from_tinker_path(
        self,
        tinker_path: str,
        ttl_seconds: int | None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[None]:
        """Set the time until a checkpoint expires, or keep it forever.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            ttl_seconds: Seconds from now, an hour to ten years. Null, which is sent, makes the checkpoint stay
                forever.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future without a value, done when the server has answered.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path)
        self._check(ttl_seconds=ttl_seconds)
        return self._ask(
            weights_api.set_checkpoint_ttl(
                models.SetCheckpointTtlRequest(ttl_seconds=ttl_seconds),
                training_run_id=parts["training_run_id"],
                checkpoint_id=parts["checkpoint_id"],
            ).with_options(extra_headers, timeout)
        )

    async def set_checkpoint_ttl_from_tinker_path_async(
        self,
        tinker_path: str,
        ttl_seconds: int | None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Await :meth:`set_checkpoint_ttl_from_tinker_path` and return its result."""
        return await self.set_checkpoint_ttl_from_tinker_path(
            tinker_path, ttl_seconds, extra_headers=extra_headers, timeout=timeout
        )

    def get_external_weights_urls(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.ExternalWeightsUrlsResponse]:
        """Get signed URLs of the files of an external checkpoint.

        The files are fetched without credentials.

        Args:
            tinker_path: The checkpoint, `tinker://<training run>/<kind>/<name>`.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the URLs by file name, and the time when they expire.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        parts = self._split_path(tinker_path, "external")
        return self._ask(
            weights_api.get_external_weights_urls(
                training_run_id=parts["training_run_id"], checkpoint_id=parts["checkpoint_id"]
            ).with_options(extra_headers, timeout)
        )

    async def get_external_weights_urls_async(
        self, tinker_path: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> models.ExternalWeightsUrlsResponse:
        """Await :meth:`get_external_weights_urls` and return its result."""
        return await self.get_external_weights_urls(tinker_path, extra_headers=extra_headers, timeout=timeout)

    def external_weights_upload_start(
        self,
        base_model: str,
        lora_config: models.LoraConfig,
        destination_project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.ExternalWeightsUploadStartResult]:
        """Start the upload of an adapter, and get a signed URL for each of its files.

        The files are those that an external checkpoint of this base model and adapter has. Each is sent to its URL
        by HTTP PUT, without credentials; then `external_weights_upload_finish` makes a checkpoint of them.
        `tinker.checkpoints.upload` does all of it.

        Args:
            base_model: The base model of the adapter.
            lora_config: The shape of the adapter.
            destination_project_id: The project of the checkpoint; the user's default when missing.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the id of the upload, the URLs by file name, and the time when they expire.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(base_model=base_model, lora_config=lora_config, destination_project_id=destination_project_id)
        return self._ask(
            weights_api.external_weights_upload_start(
                models.ExternalWeightsUploadStartRequest(
                    base_model=base_model, lora_config=lora_config, destination_project_id=destination_project_id
                )
            ).with_options(extra_headers, timeout)
        )

    async def external_weights_upload_start_async(
        self,
        base_model: str,
        lora_config: models.LoraConfig,
        destination_project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.ExternalWeightsUploadStartResult:
        """Await :meth:`external_weights_upload_start` and return its result."""
        return await self.external_weights_upload_start(
            base_model, lora_config, destination_project_id, extra_headers=extra_headers, timeout=timeout
        )

    def external_weights_upload_finish(
        self, upload_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.ExternalWeightsUploadFinishResult]:
        """Create a checkpoint from the uploaded files of an adapter.

        The server checks the files. Finishing an upload again gives the same checkpoint.

        Args:
            upload_id: The upload, as `external_weights_upload_start` named it.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the path of the checkpoint.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(upload_id=upload_id)
        return self._ask(
            weights_api.external_weights_upload_finish(
                models.ExternalWeightsUploadFinishRequest(upload_id=upload_id)
            ).with_options(extra_headers, timeout)
        )

    async def external_weights_upload_finish_async(
        self, upload_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> models.ExternalWeightsUploadFinishResult:
        """Await :meth:`external_weights_upload_finish` and return its result."""
        return await self.external_weights_upload_finish(upload_id, extra_headers=extra_headers, timeout=timeout)

    def get_sampler(
        self, sampler_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> APIFuture[models.GetSamplerResponse]:
        """Get the model or checkpoint that a sampling session samples from.

        Args:
            sampler_id: The sampling session id; `:` in it stays itself.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the sampling session.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(sampler_id=sampler_id)
        return self._ask(sampling_api.get_sampler(sampler_id=sampler_id).with_options(extra_headers, timeout))

    async def get_sampler_async(
        self, sampler_id: str, *, extra_headers: Mapping[str, str] | None = None, timeout: float | None = None
    ) -> models.GetSamplerResponse:
        """Await :meth:`get_sampler` and return its result."""
        return await self.get_sampler(sampler_id, extra_headers=extra_headers, timeout=timeout)


class AdminOperations(Operations):
    """The methods of the client `admin`."""

    def get_audit_log(
        self,
        event_type: models.AuditEventType = "all",
        day: datetime.date | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.AuditLogResponse]:
        """Get the audit log of one day, of one kind of events or of all kinds.

        The response may come from another host, which does not receive the credential.

        Args:
            event_type: The kind of events, or all of them.
            day: One day in UTC; the server chooses where it is missing.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the events, with the users who caused them.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(event_type=event_type, day=day)
        return self._ask(
            admin_api.get_audit_log(event_type=event_type, day=None if day is None else day.isoformat()).with_options(
                extra_headers, timeout
            )
        )

    async def get_audit_log_async(
        self,
        event_type: models.AuditEventType = "all",
        day: datetime.date | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.AuditLogResponse:
        """Await :meth:`get_audit_log` and return its result."""
        return await self.get_audit_log(event_type, day, extra_headers=extra_headers, timeout=timeout)

    def get_current_checkpoint_storage_usage(
        self,
        project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> APIFuture[models.CurrentCheckpointStorageUsageResponse]:
        """Get the current storage of checkpoints, by project and user.

        Args:
            project_id: Only entries of this project; of every project where it is missing.
            extra_headers: Headers of this call only. They replace the client's of the same name, in any case.
            timeout: The longest time for the call and its retries, in seconds; APITimeoutError after it.

        Returns:
            A future of the storage, in bytes and gigabytes.

        Raises:
            ValueError: At once, for an argument that cannot be right.
        """
        self._check(project_id=project_id)
        return self._ask(
            admin_api.get_checkpoint_storage_usage(project_id=project_id).with_options(extra_headers, timeout)
        )

    async def get_current_checkpoint_storage_usage_async(
        self,
        project_id: str | None = None,
        *,
        extra_headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> models.CurrentCheckpointStorageUsageResponse:
        """Await :meth:`get_current_checkpoint_storage_usage` and return its result."""
        return await self.get_current_checkpoint_storage_usage(project_id, extra_headers=extra_headers, timeout=timeout)
