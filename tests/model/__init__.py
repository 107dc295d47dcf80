"""The order of requests of one run, with the modules of the client and of the server that decide
about it: every interleaving of calls, messages, failures and restarts.
"""
