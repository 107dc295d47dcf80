"""Data-parallel training and sampling by several processes, each of which has the whole model, or a
part of it (``shards``).

Ray runs the processes (``workers``), torch.distributed sums their gradients (``worker``), and the
engine that the server sees gives each its share of the work and gathers the results (``engine``,
``batch``). Only the workers import torch.
"""
