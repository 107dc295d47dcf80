"""The order of work: one thread for the engine, a queue for each model, and one for all samples."""
