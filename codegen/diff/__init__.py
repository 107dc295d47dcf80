"""Report what a change of the contract breaks, and for whom.

    python -m codegen diff OLD [NEW] [--format text|json|markdown]
        [--fail-on clients,servers,python]

It reads raw documents and `.proto` files, so that nothing is invisible because the generator does
not use it. Every finding has a JSON pointer, one sentence, and whom it breaks:

- clients: a client that follows the old contract can fail with a server that follows the new one;
- servers: a server that follows the old contract can fail a client that follows the new one;
- python: code written for the old bindings does not run, or does not pass a type checker, with the
  new ones;
- compatible: nobody.

`schemas`, `alternatives`, `records`, `limits` compare values; `operations`, `parameters`, `bodies`,
`answers`, `security` compare exchanges; `python_names` compares what only Python sees; `proto`
compares messages; `findings` has the vocabulary.
"""

from codegen.diff.command import main
from codegen.diff.contracts import compare
from codegen.diff.findings import CLIENTS, COMPATIBLE, PYTHON, SERVERS, DiffFinding
from codegen.diff.proto_files import ProtoReader
from codegen.diff.sources import ContractSource

__all__ = [
    "CLIENTS",
    "COMPATIBLE",
    "PYTHON",
    "SERVERS",
    "ContractSource",
    "DiffFinding",
    "ProtoReader",
    "compare",
    "main",
]
