"""Records of runs, sessions, samplers, usage and billing, read by standalone clients and by
coroutine twins.
"""

import asyncio
import datetime

from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"


def main() -> None:
    service = tinker.ServiceClient(user_metadata={"experiment": "x 1"}, display_name="listing")
    runs = [
        service.create_lora_training_client(
            MODEL, rank=rank, user_metadata={"n": str(rank)}
        ).result()
        for rank in (1, 2, 3)
    ]
    sampler = service.create_sampling_client(base_model=MODEL).result()
    session_id = runs[0].model_id.partition(":")[0]
    sampler.sample(types.ModelInput.from_ints([1]), 1, types.SamplingParams(max_tokens=1)).result()

    rest = tinker.RestClient()
    show(
        "capabilities",
        [model.model_name for model in rest.get_server_capabilities().result().supported_models],
    )
    show(
        "the same",
        [model.model_name for model in service.get_server_capabilities().supported_models],
    )
    page = rest.list_training_runs(limit=2, offset=1).result()
    show(
        "runs",
        [
            [[run.training_run_id, run.lora_rank, run.user_metadata] for run in page.training_runs],
            page.cursor,
        ],
    )
    show(
        "accessible",
        rest.list_training_runs(access_scope="accessible", project_id="p 1/é").result().cursor,
    )
    show("run", rest.get_training_run(runs[0].model_id).result().lora_rank)
    session = rest.get_session(session_id).result()
    show(
        "session",
        [
            session.training_run_ids,
            session.sampler_ids,
            session.user_metadata,
            session.display_name,
        ],
    )
    show("sessions", rest.list_sessions(limit=5).result().sessions)
    show("sampler", rest.get_sampler(session.sampler_ids[0]).result())
    show("assigned", rest.assign_session_project(session_id, "project-9").result())
    found = rest.search_sessions(
        types.SessionSearchRequest(user_metadata={"experiment": "x 1"}, limit=3)
    ).result()
    show(
        "found",
        [
            [one.session_id, one.display_name, one.user_metadata, one.project_id]
            for one in found.sessions
        ],
    )
    show(
        "whole search",
        rest.search_sessions(
            types.SessionSearchRequest(statuses=[types.ActiveSessionStatusQuery()])
        )
        .result()
        .next_cursor,
    )

    async def awaited() -> None:
        show("async runs", len((await rest.list_training_runs_async(limit=1)).training_runs))
        show("async session", (await rest.get_session_async(session_id)).display_name)

    asyncio.run(awaited())
    admin = tinker.AdminClient()
    start, end = (
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 8, tzinfo=datetime.UTC),
    )
    usage = admin.get_billing_usage(start, end).result()
    show("usage", sorted({one.event_info.type for one in usage.data}))
    show("storage", admin.get_current_checkpoint_storage_usage().result())
    log = admin.get_audit_log(event_type="all", day=datetime.date(2026, 1, 2)).result()
    show("log", len(log.entries))
    failure("no such run", lambda: rest.get_training_run("no:train:0"))
    failure("no such session", lambda: rest.get_session("no"))
    failure("no such sampler", lambda: rest.get_sampler("no"))
    service.close("success").result()


main()
