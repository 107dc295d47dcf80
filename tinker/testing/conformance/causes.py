"""What causes are called in a report, and which of them are told as one finding."""

from __future__ import annotations

from tinker.testing.conformance.outcome import Observation

#: Causes that many checks meet: what is wrong, and what its author can do.
KNOWN: dict[str, tuple[str, str]] = {
    "statuses": (
        "Responses have other status codes than the contract.",
        "Clients accept any 2xx as success; the status code of an error decides which exception is raised and whether the"
        " request is retried.",
    ),
    "unknown ids": (
        "Unknown ids are not refused with 404.",
        "Look up the id first and answer 404 with a detail; clients retry a request for minutes after a 500.",
    ),
    "numbers of training": (
        "The sequence numbers of training requests (`seq_id`) are not handled as the contract says.",
        "Hold a request until those of the model with lower numbers are there, count those that were refused or failed, refuse"
        " a number that another request used with 409 at once: clients send requests of one model at the same time and"
        " repeat them.",
    ),
    "repetition": (
        "A repeated request is executed again.",
        "Clients repeat a request with the same number if its response was lost; return the `request_id` of the first one.",
    ),
    "already so": (
        "An operation that is already done succeeds again instead of failing with 409.",
        "Refuse an existing name unless `overwrite` is true, and refuse to publish a public checkpoint; programs rely on it.",
    ),
    "body of refusal": (
        'Error responses have no JSON body with "detail".',
        'Send {"detail": ...} as application/json with every status of 400 and above; clients show it to their users.',
    ),
    "crash for refusal": (
        "Invalid requests cause an unhandled error.",
        "Clients retry a request for minutes after a 500. Refuse it with the status code that the contract lists.",
    ),
    "failure as status": (
        "A failed request is reported by the status code of the poll.",
        'Answer 200 with {"error": ..., "category": "user" | "server"}; clients treat other status codes as failures of the'
        " poll.",
    ),
    "time without a zone": (
        "Times have no time zone.",
        "Write times as in RFC 3339, with Z or an offset; clients cannot compare them otherwise.",
    ),
    "name of the loss": (
        "The loss of a batch is not the metric `loss:sum`.",
        "Return the sum over all data as `loss:sum` in `metrics`; clients add it up over the parts of a batch.",
    ),
    "unknown fields": (
        "Unknown fields are refused.",
        "Ignore unknown fields, as the contract requires, so that newer clients work with older servers.",
    ),
    "missing operation": (
        "Required operations are missing.",
        "Clients call these unconditionally. Serve them under the path and method of the contract.",
    ),
    "late": (
        "A response or result does not arrive in time.",
        "Answer each poll within 45 s, with `try_again` if there is no result yet; clients poll again. If the machine is slow,"
        " give the kit more time: --deadline.",
    ),
    "made names": (
        "Ids or paths do not have the format of the contract.",
        "Clients compute the id of a model from the id of its session, and parse the paths of checkpoints.",
    ),
    "seed": (
        "The seed of an adapter has no effect.",
        "Initialize the adapter from `lora_config.seed`, so that a program gives the same result twice.",
    ),
    "protobuf": (
        "Protobuf bodies cause an unhandled error.",
        "Read `application/x-protobuf`, or refuse it with 415: clients then send JSON. After a 500 they retry.",
    ),
    "prompt logprobs": (
        "Prompt logprobs do not have one value per token.",
        "Return as many as the prompt has tokens, null for the first: clients index them by token position.",
    ),
    "json results": (
        "Results are sent as protobuf although only JSON is accepted.",
        "Use the `Accept` header of the poll: clients of 2025, and every program without the schema, read JSON.",
    ),
    "forms of results": (
        "Results do not have the requested format.",
        'Use the `Accept` header of a poll; answer a failed request with status 200 and {"error": ..., "category": ...}.',
    ),
    "values of losses": (
        "Losses have other values than the contract defines.",
        "Compute each loss and its `loss:sum` by its description; programs compare and add up these numbers.",
    ),
    "misfits": (
        "Responses have other fields or values than the contract.",
        "Return the records as the contract describes them: each line below names an operation and what does not fit.",
    ),
    "refusals": (
        "Valid requests are refused.",
        "Clients send the same requests. Accept them, or answer 404 or 501 if the operation is missing.",
    ),
    "failures": (
        "Valid requests are accepted and then fail.",
        "These requests follow the contract. Execute them, or refuse them at once.",
    ),
    "crashes": (
        "Requests cause an unhandled error.",
        "Look for the exceptions in the server's log; clients retry such a request for minutes before they give up.",
    ),
}

#: Kinds of causes that are told together where nothing else is blocked by them: each line of the finding is one of them.
_KINDS = {
    "misfit": "misfits",
    "unlisted": "misfits",
    "refused": "refusals",
    "failed": "failures",
    "time without a zone": "misfits",
    "name of the loss": "values of losses",
    "json results": "forms of results",
    "failure as status": "forms of results",
    "crash": "crashes",
    "broken": "crashes",
}


def group_of(one: Observation, check: str, blocking: frozenset[str]) -> str:
    """Return what an observation is grouped by: its cause (with its kind where that blocks nothing), else its check."""
    if not one.cause:
        return f"check: {check}"
    kind = _KINDS.get(one.cause.partition(": ")[0])
    return one.cause if kind is None or one.cause in blocking else kind
