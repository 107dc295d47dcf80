"""``tinker checkpoint``: what the server keeps of trained weights."""
