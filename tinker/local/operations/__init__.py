"""What handlers share: models, descriptions, submission, inputs and streams, between the requests and the engine."""
