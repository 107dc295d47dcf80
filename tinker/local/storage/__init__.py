"""The data of a server: sessions, futures and accounts in memory, checkpoints and snapshots on
disk.
"""
