"""Parameters that are not supported: those of OpenAI's API and of other servers, and misspellings."""

from __future__ import annotations

import msgspec

from tinker.local.bodies import find_unknown_fields
from tinker.local.errors import APIProblem
from tinker_records import find_meant


class OtherServersParameters(msgspec.Struct, kw_only=True):
    """Parameters of OpenAI's API and of other servers that change the prompt, the text or the extra output.

    This server has none of them.
    """

    add_generation_prompt: object = None
    allowed_token_ids: object = None
    audio: object = None
    bad_words: object = None
    bad_words_ids: object = None
    chat_template: object = None
    chat_template_kwargs: object = None
    continue_final_message: object = None
    documents: object = None
    dry_multiplier: object = None
    ebnf: object = None
    epsilon_cutoff: object = None
    eta_cutoff: object = None
    grammar: object = None
    guided_choice: object = None
    guided_grammar: object = None
    guided_json: object = None
    guided_regex: object = None
    ignore_eos: object = None
    include_stop_str_in_output: object = None
    json_schema: object = None
    length_penalty: object = None
    logits_processors: object = None
    min_new_tokens: object = None
    min_tokens: object = None
    mirostat: object = None
    no_repeat_ngram_size: object = None
    no_stop_trim: object = None
    prompt_logprobs: object = None
    reasoning: object = None
    reasoning_effort: object = None
    regex: object = None
    repeat_penalty: object = None
    return_token_ids: object = None
    return_tokens_as_token_ids: object = None
    skip_special_tokens: object = None
    spaces_between_special_tokens: object = None
    stop_regex: object = None
    stop_token_ids: object = None
    structural_tag: object = None
    structured_outputs: object = None
    tfs_z: object = None
    thinking: object = None
    top_a: object = None
    truncate_prompt_tokens: object = None
    typical_p: object = None
    use_beam_search: object = None
    verbosity: object = None
    web_search_options: object = None
    xtc_probability: object = None


# What changes nothing. Of every other parameter that is zero, false and empty.
_NEUTRAL: dict[str, object] = {
    "add_generation_prompt": True,
    "length_penalty": 1,
    "prompt_logprobs": None,  # 0 asks for those of the prompt's own tokens
    "repeat_penalty": 1,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "tfs_z": 1,
    "typical_p": 1,
}

# Parameters of OpenAI's API and of other servers that leave the text as it is: they are reported and ignored.
_IGNORED = frozenset(
    {
        "function_call",
        "metadata",
        "mirostat_eta",
        "mirostat_tau",
        "modalities",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
    }
)
_LIKENESS = 0.8  # of a misspelling to the name that was meant; "user_id" is no "user"


class UnknownParameter(APIProblem):
    """400: a parameter that is probably a misspelling of ``meant``."""

    def __init__(self, param: str, meant: str) -> None:
        super().__init__(400, f'unknown parameter "{param}"; did you mean "{meant}"?')
        self.param = param


def asks_for(name: str, value: object) -> bool:
    """Return whether a value asks for something that the server would have to do."""
    return bool(value) if name not in _NEUTRAL else value is not None and value != _NEUTRAL[name]


def check_names(content: bytes, kind: type[msgspec.Struct], other: type[msgspec.Struct]) -> None:
    """Raise UnknownParameter for the first misspelled parameter of a body.

    Names that resemble none are left alone, and so are those of ``other``, the body of the other endpoint.
    """
    known = {*kind.__struct_fields__, *_IGNORED}
    for name in find_unknown_fields(content, kind):
        if "." in name or name in _IGNORED or name in other.__struct_fields__:
            continue
        meant = find_meant(name, known, _LIKENESS)
        if meant is not None:
            raise UnknownParameter(name, meant)
