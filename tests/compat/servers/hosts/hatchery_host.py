"""Start Hatchery's gateway and worker in one process, on the CPU:
`hatchery_host.py MODEL PORT KEY`.

Hatchery's own launcher takes a scripted worker where there is no GPU, and gives sessions no way to
end; this one makes the same parts, with the worker that trains.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

MODEL, PORT, KEY = sys.argv[1], int(sys.argv[2]), sys.argv[3]
# The worker keeps 20 adapters unless told otherwise. With more of them it drops one whenever it
# loads one, often the one that it has just loaded and is about to use.
ADAPTERS = 128


def shorten_tracebacks() -> None:
    """Log tracebacks without the values of variables, whose thousands of lines hold it up."""
    import structlog

    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(processors=[structlog.processors.add_log_level, renderer])


async def serve() -> None:
    """Serve until the process is ended."""
    import uvicorn

    shorten_tracebacks()
    from hatchery.core.gateway import create_app, set_config
    from hatchery.core.local_dev import _build_config
    from hatchery.core.worker import GPUWorker

    config = _build_config(KEY)
    set_config(config)
    await config.metadata.initialize()
    await config.queue.initialize()
    worker = GPUWorker(
        worker_id="worker",
        base_model_name=MODEL,
        config=config,
        device="cpu",
        max_lora_slots=ADAPTERS,
    )
    await worker.register()

    async def work() -> None:
        while True:
            job = await config.queue.dequeue(
                worker_id="worker", model_filter=MODEL, visibility_timeout=300
            )
            if job is None:
                await asyncio.sleep(0.02)
            else:
                await worker._process_one(job)

    task = asyncio.create_task(work())
    settings = uvicorn.Config(
        create_app(config=config), host="127.0.0.1", port=PORT, log_level="info", lifespan="off"
    )
    try:
        await uvicorn.Server(settings).serve()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


asyncio.run(serve())
