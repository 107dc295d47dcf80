"""What handlers share: descriptions, submission, inputs and streams, between the requests and the
engine.
"""
