"""Module paths that older code imports from. Everything here lives elsewhere."""
