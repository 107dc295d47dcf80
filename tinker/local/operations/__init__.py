"""What handlers share: models, descriptions, submission, losses and streams, between the requests and the engine."""
