"""The order of the requests of one run: a model, its invariants, and its traces with the real
client and server.
"""
