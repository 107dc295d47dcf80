"""What handlers share: models, descriptions, submission, samples, losses and streams, between the requests and the engine."""
