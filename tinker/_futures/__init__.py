"""What a future keeps besides its outcome: the progress of its request, the receipt of its error,
the tokens of a stream.
"""

from __future__ import annotations

from tinker._futures.progress import CURRENT_OPERATION as CURRENT_OPERATION
from tinker._futures.progress import EventLabels as EventLabels
from tinker._futures.progress import OperationProgress as OperationProgress
from tinker._futures.progress import Reachability as Reachability
from tinker._futures.receipt import Receipt as Receipt
from tinker._futures.receipt import report_before_others as report_before_others
from tinker._futures.token_queue import SILENCE_SECONDS as SILENCE_SECONDS
from tinker._futures.token_queue import TokenQueue as TokenQueue
