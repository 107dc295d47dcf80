"""Losses that a client traced: checked when they come, evaluated node by node with torch, never
executed as code.
"""
