"""Names that somebody misspelled, and the known names that were probably meant."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_args

P = ParamSpec("P")
T = TypeVar("T")

#: From 0 to 1, of a misspelled name to the one that was meant: --epoch is close to --epochs,
#: --base-url is not to --schedule.
LIKENESS = 0.75


def find_closest(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """Return the known name that a misspelled one resembles most; None where it resembles none by
    at least ``likeness``.

    >>> find_closest("learning_rte", ["beta1", "learning_rate"])
    'learning_rate'
    """
    import difflib

    by_letters = {one.lower(): one for one in known}
    return next(
        (
            by_letters[one]
            for one in difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=likeness)
        ),
        None,
    )


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the public one that was probably meant;
    empty if there is none.

    >>> suggest_name("foward", ["forward", "_backward"])
    "; did you mean 'forward'?"
    """
    public = () if name.startswith("_") else (one for one in known if not one.startswith("_"))
    return f"; did you mean {closest!r}?" if (closest := find_closest(name, public)) else ""


def suggest(what: str, name: str, known: Iterable[str]) -> str:
    """Return the known names, and behind them the one that was probably meant.

    >>> suggest("dro takes", "bata", ["beta"])
    "dro takes beta; did you mean 'beta'?"
    >>> suggest("dro takes", "rope", ["beta"])
    'dro takes beta'
    """
    names = list(known)
    return f"{what} {', '.join(names) or 'none'}{suggest_name(name, names)}"


#: What to write for the names of methods.
LOSSES_OF_METHODS: Mapping[str, str] = {
    **dict.fromkeys(("sft", "nll", "ce"), "use 'cross_entropy'"),
    **dict.fromkeys(
        ("grpo", "rloo", "reinforce", "policy_gradient"),
        "use 'importance_sampling' or 'ppo', with advantages of your own",
    ),
    **dict.fromkeys(
        ("dpo", "ipo", "kto", "orpo", "simpo"), "write it as a function for forward_backward_custom"
    ),
}


def suggest_loss(what: str, name: str, known: Iterable[str]) -> str:
    """Return what to write for an unknown loss: for the name of a method its loss, otherwise the
    known names.

    >>> suggest_loss("the server has", "CE", ["cross_entropy"])
    "use 'cross_entropy'"
    """
    return LOSSES_OF_METHODS.get(name.lower()) or suggest(
        what, name, (one for one in known if one != "custom")
    )


#: Names that other libraries use.
_ALIASES = {
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    **dict.fromkeys(("adam_epsilon", "epsilon"), "eps"),
    "alpha": "lora_alpha",
    "betas": "beta1 beta2",
    "do_sample": "temperature",
    "input_ids": "model_input",
    "labels": "loss_fn_inputs",
    "loss": "loss_fn",
    **dict.fromkeys(("lora_config", "lora_r", "lora_rank", "peft_config", "r"), "rank"),
    "lora_target_modules": "target_modules",
    **dict.fromkeys(("clip_grad_norm", "max_grad_norm", "max_norm"), "grad_clip_norm"),
    "max_seq_length": "max_length",
    **dict.fromkeys(("local_dir", "output_dir"), "directory"),
    "lr": "learning_rate",
    **dict.fromkeys(
        (
            "max_completion_length",
            "max_completion_tokens",
            "max_length",
            "max_new_tokens",
            "max_output_tokens",
        ),
        "max_tokens",
    ),
    **dict.fromkeys(("model", "model_id", "model_name", "model_name_or_path"), "base_model"),
    **dict.fromkeys(("best_of", "n", "num_generations", "num_return_sequences"), "num_samples"),
    "params": "sampling_params",
    **dict.fromkeys(("checkpoint", "checkpoint_path", "path"), "model_path"),
    "prompt_logprobs": "include_prompt_logprobs",
    **dict.fromkeys(("encoder_repetition_penalty", "repeat_penalty"), "repetition_penalty"),
    **dict.fromkeys(("stop_sequences", "stop_strings", "stop_token_ids"), "stop"),
    "top_logprobs": "topk_sample_logprobs",
}
#: Arguments of other libraries that nothing here has, and why.
ABSENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("bf16", "dtype", "fp16", "torch_dtype"),
        "the server sets the data type: `tinker serve --dtype`",
    ),
    **dict.fromkeys(
        ("load_in_4bit", "load_in_8bit", "quantization", "quantization_config", "quantize"),
        "it is an option of the server: `tinker serve --quantize nf4`",
    ),
    **dict.fromkeys(
        ("device", "device_map"),
        "it is an option of the server: `tinker serve --device` and `--device-map`",
    ),
    **dict.fromkeys(("min_new_tokens", "min_tokens"), "answers have no minimum length"),
    **dict.fromkeys(
        ("eos_token_id", "pad_token_id"), "the server knows the special tokens; `stop` takes others"
    ),
    "gradient_checkpointing": "it is an option of the server: `tinker serve --recompute always`",
    "include_stop_str_in_output": "the stop that ends a sequence is part of its tokens",
    "logit_bias": "single tokens cannot be made more or less likely",
    **dict.fromkeys(("logprobs", "return_logprobs"), "every sampled sequence has its logprobs"),
    "lora_dropout": "adapters have no dropout",
    "num_beams": "beam search is not supported",
    "skip_special_tokens": "pass it to decode()",
    **dict.fromkeys(("top_a", "top_h"), "there are top_k, top_p and min_p"),
}
#: Arguments, by their name here, that belong to another call.
_ELSEWHERE = {
    **dict.fromkeys(("max_tokens", "temperature", "top_p"), "pass SamplingParams to sample()"),
    **dict.fromkeys(
        ("batch_size", "num_train_epochs", "train_dataset"),
        "forward_backward takes one batch, in a loop of yours",
    ),
    **dict.fromkeys(
        ("lr_scheduler_type", "warmup_steps"), "each optim_step() has its own learning rate"
    ),
    "gradient_accumulation_steps": "call forward_backward several times before optim_step()",
    **dict.fromkeys(("max_length", "max_seq_length"), "cut the tokens of the examples"),
    "learning_rate": "pass AdamParams(learning_rate=...) to optim_step()",
    **{
        one: f"pass {one} to sample()"
        for one in ("include_prompt_logprobs", "num_samples", "topk_sample_logprobs")
    },
}


def find_meant(name: str, known: Collection[str], likeness: float = LIKENESS) -> str | None:
    """Return the known name that was probably meant: other libraries' name for the same, or a
    misspelling.

    >>> (
    ...     find_meant("lr", ["learning_rate"]),
    ...     find_meant("sed", ["seed"]),
    ...     find_meant("tree", ["seed"]),
    ... )
    ('learning_rate', 'seed', None)
    """
    return _ALIASES[name] if _ALIASES.get(name) in known else find_closest(name, known, likeness)


def is_misspelled(name: str, known: Iterable[str]) -> bool:
    """Return whether a name is a known one with a mistake in it, and not that of another library.

    >>> is_misspelled("max_token", ["max_tokens"]), is_misspelled("min_tokens", ["max_tokens"])
    (True, False)
    """
    return name not in _ALIASES and name not in ABSENT and find_closest(name, known) is not None


def advise(
    kind: str, name: str, known: Iterable[str], given: Collection[str] = (), verb: str = "has no"
) -> str:
    """Return what is said of an argument that a type does not have: why, the name that was meant,
    or all names.

    A name that was ``given`` beside it was not meant.

    >>> advise("AdamParams", "beta_1", ["beta1", "beta2"])
    "AdamParams has no 'beta_1'; did you mean 'beta1'?"
    """
    names = sorted(known)
    free = [one for one in names if one not in given]
    here = _ALIASES.get(name, name)
    if here not in names and (
        why := ABSENT.get(name) or _ELSEWHERE.get(name) or _ELSEWHERE.get(here)
    ):
        return f"{kind} {verb} {name!r}; {why}"
    meant = [one for one in here.split() if one in free] or list(
        filter(None, [find_closest(name, free)])
    )
    advice = (
        f"did you mean {' and '.join(map(repr, meant))}?"
        if meant
        else f"it has {', '.join(names)}."
    )
    return f"{kind} {verb} {name!r}; {advice}"


def explain_change(kind: str, name: str, known: Collection[str]) -> str:
    """Return what is said when a field of a value is set or deleted.

    >>> explain_change("AdamParams", "beta1", ["beta1"])
    'AdamParams cannot be changed: make another, such as dataclasses.replace(value, beta1=...)'
    """
    if name not in known:
        return advise(kind, name, known)
    return f"{kind} cannot be changed: make another, such as dataclasses.replace(value, {name}=...)"


def suggest_arguments(kind: type[T]) -> type[T]:
    """Have the public methods of a class suggest the right name in the place of an argument that
    they do not have.
    """
    for name in dir(kind):
        method = inspect.getattr_static(kind, name)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        if method.__code__.co_argcount + method.__code__.co_kwonlyargcount > 1:
            setattr(kind, name, _explained(f"{kind.__name__}.{name}", method))
    return kind


def suggest_argument(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function suggest the right name in the place of an argument that it does not have."""
    return cast("Callable[P, T]", _explained(function.__name__, function))


def _explained(called: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: object, **values: object) -> Any:
        __tracebackhide__ = True
        try:
            return method(*args, **values)
        except TypeError as error:
            _explain(called, method, values, error)
            raise

    @wraps(method)
    async def call_later(*args: object, **values: object) -> object:
        __tracebackhide__ = True
        return await call(*args, **values)

    return call_later if inspect.iscoroutinefunction(method) else call


def _explain(
    called: str, method: Callable[..., object], values: Collection[str], error: TypeError
) -> None:
    """Raise TypeError with the name that was meant, if the error is of the call and not of the
    method.
    """
    __tracebackhide__ = True
    known = [name for name in inspect.signature(method).parameters if name != "self"]
    unknown = [name for name in values if name not in known]
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return
    if not unknown:  # the class that was called may inherit the method
        raise TypeError(str(error).replace(method.__qualname__, called)) from None
    inside = _find_inside(called, method, unknown[0])
    raise TypeError(inside or advise(called, unknown[0], known, values).removesuffix(".")) from None


def _find_inside(called: str, method: Callable[..., object], name: str) -> str | None:
    """Return what is said of a name that is a field of one of the arguments."""
    field = _ALIASES.get(name, name)
    for argument in inspect.signature(method).parameters.values():
        kind: Any = vars(sys.modules[method.__module__]).get(
            str(argument.annotation).partition(" ")[0]
        )
        kind = next(iter(get_args(kind)), kind)  # of a union, the first
        if field in getattr(kind, "__struct_fields__", ()):
            return f"{called} has no {name!r}; pass {kind.__name__}({field}=...)"
    return None


class NamesChecked(type):
    """Turn an argument that a constructor does not know into a TypeError that suggests the right
    name.
    """

    #: What else is said of arguments that are wrong: how most people make the value.
    _advice = ""

    if not TYPE_CHECKING:  # the signature is that of the constructor

        def __call__(cls, *args: object, **values: object) -> object:
            __tracebackhide__ = True  # pytest and IPython show the line of the call only
            try:
                return super().__call__(*args, **values)
            except TypeError:
                known = inspect.signature(cls.__init__).parameters
                unknown = [name for name in values if name not in known]
                by_name = [one.name for one in known.values() if one.kind is one.KEYWORD_ONLY]
                if args and len(by_name) == len(known) - 1:
                    message = (
                        f"{cls.__name__} takes no positional arguments: write "
                        f"{cls.__name__}({by_name[0]}=...)"
                    )
                    raise TypeError(message + cls._advice) from None
                if not unknown or any(one.kind is one.VAR_KEYWORD for one in known.values()):
                    raise
            meant = advise(cls.__name__, unknown[0], list(known)[1:], values)
            raise TypeError(meant.removesuffix(".") + cls._advice)

        @property
        def __signature__(cls) -> inspect.Signature:
            """Return the parameters of the constructor, for `help` and the like; those of the call
            above say nothing.
            """
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=list(signature.parameters.values())[1:])
