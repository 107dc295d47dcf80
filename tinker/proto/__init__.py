"""The protobuf messages of the API for Google's runtime, under the names that servers and their
tests import.

``tinker_public_pb2`` has the message classes, made from ``tinker_public.proto``. ``request_conv``
makes messages of requests, ``response_conv`` makes results of bytes. They need the package
``protobuf``, which the extra ``proto`` adds; the client itself needs none of this.
:mod:`tinker.wire` reads requests and writes results without that package, and faster.

>>> from tinker.proto import tinker_public_pb2
>>> tinker_public_pb2.SampledSequence(tokens=b"")
<BLANKLINE>
"""

from __future__ import annotations

from tinker._basics.installation import install_command

try:
    from tinker.proto import request_conv, response_conv, tinker_public_pb2
except ModuleNotFoundError as _error:
    if str(_error.name).partition(".")[0] != "google":
        raise
    raise ImportError(
        f"tinker.proto needs Google's protobuf runtime: {install_command('proto')}"
    ) from _error

__all__ = ["request_conv", "response_conv", "tinker_public_pb2"]
