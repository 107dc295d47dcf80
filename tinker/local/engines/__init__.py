"""Engines train and sample: their protocol, the checks that they share, and the choice of one."""
