"""Payload bytes in both directions: JSON and protobuf. No I/O, no clients, no retry."""
