"""What causes are called in a report, and which of them are told as one finding."""

from __future__ import annotations

from tinker.testing.conformance.outcome import Observation

#: Causes that many checks meet: what is wrong, and what its author can do.
KNOWN: dict[str, tuple[str, str]] = {
    "statuses": (
        "Statuses are others than the document's.",
        "Clients take any 2xx for a success; by the status of a refusal they decide what is raised and what is repeated.",
    ),
    "unknown ids": (
        "Ids that were never given out are not refused with 404.",
        "Look the id up first and answer 404 with a detail; clients repeat a request after 500 for minutes.",
    ),
    "numbers of training": (
        "The numbers of training requests (`seq_id`) do not mean what the document says.",
        "Hold a request until those of the model with lower numbers are there, count those that were refused or failed, refuse"
        " a number that another request used with 409 at once: clients send requests of one model at the same time and"
        " repeat them.",
    ),
    "repetition": (
        "Requests that are sent again are done again.",
        "Clients repeat a request whose answer was lost, under the same number; answer the `request_id` of the first one.",
    ),
    "already so": (
        "What is already so is done again, where 409 is due.",
        "Refuse a name that exists unless `overwrite` is true, and to publish what is public; programs rely on it.",
    ),
    "body of refusal": (
        'Refusals have no JSON body with "detail".',
        'Answer every status of 400 and above with {"detail": ...}, as application/json; clients show it to their users.',
    ),
    "crash for refusal": (
        "What must be refused ends in an unhandled error.",
        "Clients repeat a request after 500 for minutes. Refuse it with the status that the document lists.",
    ),
    "failure as status": (
        "A request that failed is told by the status of its poll.",
        'Answer 200 with {"error": ..., "category": "user" | "server"}; clients take other statuses for failures of the poll.',
    ),
    "time without a zone": (
        "Times have no zone.",
        "Write times as RFC 3339 does, with Z or an offset; without one clients cannot compare them.",
    ),
    "name of the loss": (
        "The loss of a batch is not the metric `loss:sum`.",
        "Answer the sum over all data as `loss:sum` in `metrics`; clients add it up over the parts of a batch.",
    ),
    "unknown fields": (
        "Fields that the server does not know are refused.",
        "Ignore unknown fields: the document says so, so that newer clients can speak to older servers.",
    ),
    "missing operation": (
        "Operations that no server may lack are not at the document's address.",
        "Clients call these without asking first. Serve them under the path and the method of the document.",
    ),
    "late": (
        "There is no answer, or no result, in time.",
        "Answer each poll within 45 s, with `try_again` while there is no result; clients ask again. Where the machine is slow,"
        " give the kit more time: --deadline.",
    ),
    "made names": (
        "Ids and paths are made in another way than the document says.",
        "Clients compute the id of a model from its session's, and take checkpoints apart by the words of their paths.",
    ),
    "seed": (
        "The seed of an adapter has no effect.",
        "Begin the adapter from `lora_config.seed`, so that the same program gives the same result twice.",
    ),
    "protobuf": (
        "Bodies in protobuf end in an unhandled error.",
        "Read `application/x-protobuf`, or refuse it with 415: clients send JSON from then on. After a 500 they ask again.",
    ),
    "prompt logprobs": (
        "The logprobs of a prompt are not one for each of its tokens.",
        "Answer as many as the prompt has tokens, null for the first: clients count their places from the first token.",
    ),
    "json results": (
        "Results come as protobuf where only JSON is accepted.",
        "Go by the `Accept` of the poll: clients of 2025, and every program without the schema, read JSON.",
    ),
    "forms of results": (
        "Results are not in the form in which they are asked for.",
        'Go by the `Accept` of a poll; answer a request that failed with status 200, {"error": ..., "category": ...}.',
    ),
    "values of losses": (
        "Losses have other values than the document gives them.",
        "Compute each loss and its `loss:sum` as its description says; programs compare and add up these numbers.",
    ),
    "misfits": (
        "Answers have other fields or values than the document's.",
        "Answer the records as the document describes them: each line below names an operation and what does not fit.",
    ),
    "refusals": (
        "Requests that the document allows are refused.",
        "Clients send what the kit sends. Take it, or answer 404 or 501 where there is no such operation.",
    ),
    "failures": (
        "Requests that the document allows are accepted and fail.",
        "What the kit asked for is in the document. Do it, or refuse it when it comes.",
    ),
    "crashes": (
        "Requests end in an unhandled error.",
        "Find the exceptions in the server's log; clients repeat such a request for minutes before they give up.",
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
    """What an observation is told under: its cause, or unless that blocks checks with others of its kind; else its check."""
    if not one.cause:
        return f"check: {check}"
    kind = _KINDS.get(one.cause.partition(": ")[0])
    return one.cause if kind is None or one.cause in blocking else kind
