"""A path that older code imports from; made by `python -m codegen generate`."""
