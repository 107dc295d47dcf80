"""The endpoints that clients for OpenAI's API ask for: ``/v1/models``, ``/v1/completions`` and
``/v1/chat/completions``. With them come ``/tokenize`` and ``/detokenize``, as vLLM has them.

They are no part of the contract. A request becomes a sample of the contract (``asample`` or
``stream_sample``), so that it waits, is counted and is refused like every other one.
"""
