"""The work of requests on models, losses, samples and checkpoints, between the handlers and the engine."""
