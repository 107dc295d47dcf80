"""Checkpoints: saved, loaded, listed, described, published, kept for a time, copied, exported,
deleted.
"""

from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"


def main() -> None:
    service = tinker.ServiceClient(project_id="project-1", user_metadata={"run": "parity"})
    rest = service.create_rest_client()
    training = service.create_lora_training_client(MODEL, rank=4, seed=3).result()
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
    )
    training.forward_backward([datum], "cross_entropy").result()
    training.optim_step(types.AdamParams(learning_rate=0.01)).result()
    saved = training.save_state("0001", ttl_seconds=7200, user_metadata={"step": "1"}).result()
    show("saved", [saved.path, saved.get_console_url()])
    show("again", training.save_state("0001", overwrite=True).result().path)
    sampler = training.save_weights_for_sampler(
        "s1", ttl_seconds=3600, user_metadata={"a": "b"}
    ).result()
    show("sampler", [sampler.path, sampler.get_console_url(), sampler.get_playground_url()])
    external = training.save_weights_external("e1", ttl_seconds=3600).result()
    show("external", external.path)

    before = training.forward([datum], "cross_entropy").result().metrics["loss:sum"]
    weights = service.create_training_client_from_state(
        saved.path, user_metadata={"from": "weights"}
    ).result()
    state = service.create_training_client_from_state_with_optimizer(saved.path).result()
    for name, client in (("weights", weights), ("state", state)):
        show(
            name,
            [
                client.model_id,
                client.forward([datum], "cross_entropy").result().metrics["loss:sum"] - before
                < 1e-3,
            ],
        )
    loaded = service.create_lora_training_client(MODEL, rank=4, seed=5).result()
    show("loaded", loaded.load_state(saved.path).result().path)
    show(
        "same",
        loaded.forward([datum], "cross_entropy").result().metrics["loss:sum"] - before < 1e-3,
    )

    show("info", rest.get_weights_info_by_tinker_path(saved.path).result())
    run = rest.get_training_run_by_tinker_path(saved.path).result()
    show(
        "run",
        [
            run.training_run_id,
            run.base_model,
            run.is_lora,
            run.lora_rank,
            run.user_metadata,
            run.corrupted,
        ],
    )
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    show(
        "listed",
        [
            [one.checkpoint_id, one.checkpoint_type, one.tinker_path, one.public, one.user_metadata]
            for one in listed
        ],
    )
    page = rest.list_user_checkpoints(limit=2, offset=1).result()
    show("page", [[one.checkpoint_id for one in page.checkpoints], page.cursor])
    show("published", rest.publish_checkpoint_from_tinker_path(saved.path).result())
    show("unpublished", rest.unpublish_checkpoint_from_tinker_path(saved.path).result())
    show("for a time", rest.set_checkpoint_ttl_from_tinker_path(saved.path, 86400).result())
    show("for ever", rest.set_checkpoint_ttl_from_tinker_path(saved.path, None).result())
    urls = rest.get_external_weights_urls(external.path).result()
    show("urls", [sorted(urls.urls), urls.expires])
    show("copy", rest.copy_weights(saved.path, "project-2", ttl_seconds=3600).result())
    show("copy into mine", service.copy_weights(saved.path).result())
    show("deleted", rest.delete_checkpoint_from_tinker_path(sampler.path).result())
    show("deleted by id", rest.delete_checkpoint(training.model_id, "weights/0001").result())

    failure("gone", lambda: rest.delete_checkpoint_from_tinker_path(sampler.path))
    failure("not a path", lambda: rest.delete_checkpoint_from_tinker_path("nothing"))
    failure("not external", lambda: rest.get_external_weights_urls(saved.path))
    failure(
        "no such state",
        lambda: service.create_training_client_from_state("tinker://no:train:0/weights/0001"),
    )
    failure(
        "no such info",
        lambda: rest.get_weights_info_by_tinker_path("tinker://no:train:0/weights/0001"),
    )
    service.close("success", "all done").result()


main()
