"""Adapters that are brought: announced, sent as files, and made into checkpoints."""

from __future__ import annotations

import datetime

from tinker_wire import models
from tinker_wire.api import weights as api
from tinker_wire.runtime import Request

from tinker.testing.conformance.context import CheckContext, TrainingFixture, fresh_name
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.run_state import checkpoint_parts
from tinker.testing.conformance.values import LORA, are_near, distance, effect, in_utc


@check("external_weights_upload_start", "external_weights_upload_finish")
def incomplete(context: CheckContext) -> None:
    """An upload has a URL for each file of its adapter, and cannot be finished before the files
    arrive.
    """
    upload = _start(context)
    context.require(bool(upload.urls), "an upload has no URLs")
    context.expect(
        in_utc(upload.expires) > datetime.datetime.now(datetime.UTC),
        f"the URLs ended at {upload.expires}",
    )
    context.expect_refusal(_finish(upload), 400)


@check("external_weights_upload_finish")
def unknown(context: CheckContext) -> None:
    """Finishing an unknown upload is refused with 404."""
    _start(context)
    body = models.ExternalWeightsUploadFinishRequest(upload_id=fresh_name())
    context.expect_refusal(api.external_weights_upload_finish(body), 404)


@check("external_weights_upload_start", "external_weights_upload_finish")
def adapter(context: CheckContext) -> None:
    """An adapter that was saved as files and is uploaded again becomes a checkpoint with the saved
    logprobs.
    """
    context.need("weights.load")
    upload = _start(context)
    fixture = context.create()
    before = fixture.logprobs()
    fixture.learn()
    wanted = fixture.logprobs()
    _send(context, upload, _export(context, fixture))
    path, again = (context.cleanup.add(context.call(_finish(upload)).tinker_path) for _ in range(2))
    context.expect(path == again, f"finished again, {path} is {again}")
    other = context.create(1)
    context.result(other.load(path))
    found = other.logprobs()
    context.require(
        are_near(wanted, found, effect(before, wanted)),
        f"the logprobs are {distance(wanted, found):g} away",
    )


# -------------------------------------------------------------------------------------------- parts


def _start(context: CheckContext) -> models.ExternalWeightsUploadStartResult:
    body = models.ExternalWeightsUploadStartRequest(
        base_model=context.base_model(), lora_config=LORA
    )
    return context.call(api.external_weights_upload_start(body))


def _finish(
    upload: models.ExternalWeightsUploadStartResult,
) -> Request[models.ExternalWeightsUploadFinishResult]:
    return api.external_weights_upload_finish(
        models.ExternalWeightsUploadFinishRequest(upload_id=upload.upload_id)
    )


def _export(context: CheckContext, fixture: TrainingFixture) -> dict[str, bytes]:
    """Return the files of a model's adapter, by name."""
    urls = context.call(api.get_external_weights_urls(**checkpoint_parts(fixture.export()))).urls
    return {
        name: context.connection.fetch(url, context.deadline).content for name, url in urls.items()
    }


def _send(
    context: CheckContext, upload: models.ExternalWeightsUploadStartResult, files: dict[str, bytes]
) -> None:
    """Send every file that the upload has a URL for."""
    lost = sorted(upload.urls.keys() - files.keys())
    context.require(
        not lost,
        f"an upload wants {', '.join(lost)}, which the adapter that was saved as "
        "files does not have",
    )
    for name, url in upload.urls.items():
        answer = context.connection.fetch(url, context.deadline, files[name])
        context.require(
            answer.status < 300, f"the file {name} is sent, and its URL answers {answer.status}"
        )
