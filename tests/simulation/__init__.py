"""Client, network and server in one thread and one event loop, whose order and faults come from a
seed.
"""
