"""Commands from functions whose annotations declare the options, and options that several commands
share.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import click
from click.core import ParameterSource

from tinker.cli.output import CommandFailed
from tinker.cli.reading import STANDARD_INPUT, explain_dataset, read_text, suggest

Format: TypeAlias = Literal["table", "json"]


class Option:
    """An option of a command. Its name, type and default are those of the annotated parameter.

    A ``click.ParamType`` in the same annotation limits the values.
    """

    def __init__(
        self, help: str, *names: str, metavar: str | None = None, show_default: bool = True
    ) -> None:
        self.names = names
        self.show_default = show_default
        self.settings: Mapping[str, Any] = {"help": help, "metavar": metavar}


class GlobalOptions(NamedTuple):
    """The options of ``tinker`` itself."""

    format: Annotated[Format, Option("Output format.", "-f", "--format", show_default=False)] = (
        "table"
    )
    base_url: Annotated[
        str | None,
        Option(
            "Base URL of the server. Default: TINKER_BASE_URL, else the hosted service.",
            metavar="URL",
        ),
    ] = None
    patience_seconds: Annotated[
        float | None,
        click.FloatRange(min=0),
        Option(
            "How long to retry a request before the command fails; 0 disables retries. Default: "
            "10; minutes in train, sample "
            "and checkpoint create.",
            "--patience",
            metavar="SECONDS",
        ),
    ] = None
    debug: Annotated[bool, Option("Show the traceback of an error.")] = False

    @property
    def short_patience(self) -> float:
        """Return how long to retry while the user waits for an answer, in seconds."""
        return 10.0 if self.patience_seconds is None else self.patience_seconds


def command(*examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command of a function; its help ends with these examples.

    A parameter that no :class:`Option` annotates is an argument. A parameter whose type is a named
    tuple gets one made of its fields, which are options; :class:`GlobalOptions` are those of
    ``tinker``.
    """
    return functools.partial(_command, list_examples(examples))


def list_examples(lines: Sequence[str]) -> str:
    """Return examples as the end of a help."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _command(epilog: str, function: Callable[..., None]) -> click.Command:
    hints = get_type_hints(function, include_extras=True)
    records = {name: hint for name, hint in hints.items() if hasattr(hint, "_fields")}

    @functools.wraps(function)
    def call(**values: Any) -> None:
        for name, record in records.items():
            if record is GlobalOptions:
                values[name] = click.get_current_context().ensure_object(GlobalOptions)
            else:
                values[name] = record(**{field: values.pop(field) for field in record._fields})
        function(**values)

    return click.command(params=list(_parameters(function, hints)), epilog=epilog)(call)


def _parameters(
    function: Callable[..., None], hints: Mapping[str, Any]
) -> Iterator[click.Parameter]:
    for name, parameter in inspect.signature(function).parameters.items():
        if not hasattr(hints[name], "_fields"):
            yield _parameter(name, hints[name], parameter.default)
        elif hints[name] is not GlobalOptions:
            yield from options_of(hints[name])


def options_of(record: Any) -> list[click.Parameter]:
    """Return the options that the fields of a named tuple declare."""
    hints = get_type_hints(record, include_extras=True)
    return [_parameter(name, hints[name], record._field_defaults[name]) for name in record._fields]


def _parameter(name: str, hint: Any, default: Any) -> click.Parameter:
    kind, marks = _split(hint)
    is_several = get_origin(kind) is tuple
    limits: list[Any] = [mark for mark in marks if isinstance(mark, click.ParamType)]
    settings: dict[str, Any] = {"type": limits[-1] if limits else _type_of(kind)}
    option = next((mark for mark in marks if isinstance(mark, Option)), None)
    is_required = default is inspect.Parameter.empty
    if option is None:
        return click.Argument(
            [name], nargs=-1 if is_several else 1, required=is_required, **settings
        )
    if not is_required:
        settings["default"] = default
        settings["show_default"] = (
            option.show_default and default not in (None, "", ()) and kind is not bool
        )
    names = option.names or [f"--{name.replace('_', '-')}"]
    settings |= option.settings
    if kind in (int, float):
        settings["metavar"] = settings["metavar"] or "N"  # click writes INTEGER RANGE
    return click.Option(
        [*names, name],
        is_flag=kind is bool or None,
        multiple=is_several,
        required=is_required,
        **settings,
    )


def _split(hint: Any) -> tuple[Any, list[object]]:
    """Split an annotation into its type, without None, and its metadata."""
    if get_origin(hint) is Annotated:
        kind, marks = _split(get_args(hint)[0])
        return kind, [*marks, *get_args(hint)[1:]]
    if get_origin(hint) in (Union, UnionType):
        return _split(next(kind for kind in get_args(hint) if kind is not NoneType))
    return hint, []


def _type_of(kind: Any) -> Any:
    if get_origin(kind) is tuple:
        return _type_of(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    return {Path: click.Path(path_type=Path), str: _TextType()}.get(kind, kind)


def accept_global_options(command: click.Command, main: click.Command) -> None:
    """Add the options of ``main`` to a command that does not have them. Its help does not show
    them.
    """
    known = {name for parameter in command.params for name in parameter.opts}
    for option in main.params:
        if (
            isinstance(option, click.Option)
            and not option.is_eager
            and known.isdisjoint(option.opts)
        ):
            command.params.append(_repeat(option))


def _repeat(option: click.Option) -> click.Option:
    return click.Option(
        [*option.opts, str(option.name)],
        type=option.type,
        is_flag=option.is_flag,
        metavar=option.metavar,
        hidden=True,
        expose_value=False,
        callback=_override,
    )


def _override(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Override an option of ``tinker`` with the one given after the command."""
    name = str(parameter.name)
    if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
        main = context.find_root()
        main.params[name] = value
        main.obj = context.obj = GlobalOptions(**main.params)


class _TextType(click.types.StringParamType):
    """A text. BadParameter for bytes that are not UTF-8, which Python gives as halves of surrogate
    pairs.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        if half := next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None):
            self.fail(f"not text in UTF-8: byte 0x{ord(half) & 0xFF:02x}", param, ctx)
        return text


class _ExpiryType(click.types.IntParamType):
    """The seconds until a checkpoint expires. CommandFailed unless they are within the limits of
    the contract.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from tinker_wire.limits import TTL_SECONDS_MAXIMUM, TTL_SECONDS_MINIMUM

        seconds: int = super().convert(value, param, ctx)
        if not TTL_SECONDS_MINIMUM <= seconds <= TTL_SECONDS_MAXIMUM:
            limits = f"from {TTL_SECONDS_MINIMUM} (an hour) to {TTL_SECONDS_MAXIMUM} (ten years)"
            raise CommandFailed(f"--ttl is a number of seconds {limits}, got {seconds}")
        return seconds


_NUMBERED_LENGTH = 7  # of the number of a step behind the name, as in final-000012
LONGEST_NAME = 255 - _NUMBERED_LENGTH  # no server is known to take more than 255


class _NameType(_TextType):
    """The name of a checkpoint. BadParameter for a name that servers refuse."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from tinker._validate import check_name

        super().convert(value, param, ctx)
        try:
            check_name(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if len(value.encode()) > LONGEST_NAME:
            self.fail(
                f"a checkpoint name has at most {LONGEST_NAME} bytes, got {len(value.encode())}",
                param,
                ctx,
            )
        return str(value)


class _DataType(click.Path):
    """A file of examples; a dash is standard input."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        try:
            return (
                STANDARD_INPUT
                if value == "-"
                else Path(os.fsdecode(super().convert(value, param, ctx)))
            )
        except click.BadParameter as error:
            if any(Path(value).glob("dataset_*.json")):  # of datasets.save_to_disk
                problem = (
                    f"{error.message} This writes JSON Lines: "
                    f'datasets.load_from_disk("{value}").to_json("train.jsonl")'
                )
                raise click.BadParameter(problem, ctx, param) from None
            # a name of the Hugging Face Hub
            if re.fullmatch(r"\w[\w-]*/[\w.-]+(?<!\.jsonl)(?<!\.json)", str(value)):
                problem = (
                    f"{error.message} Datasets of the hub are not read by name. "
                    f"{explain_dataset(str(value))}"
                )
                raise click.BadParameter(problem, ctx, param) from None
            raise


class _NewFileType(click.Path):
    """A file to write. CommandFailed or OSError if it is not there and cannot be created, which is
    tried.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            raise CommandFailed(f"There is no folder {file.parent}")
        if not file.exists():
            there = file.resolve()  # a link may point to a file that is not there yet
            there.touch()
            there.unlink()
        return file


class _ChartType(_NewFileType):
    """The file of a chart. UsageError if it is not an SVG file."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = super().convert(value, param, ctx)
        if file.suffix.lower() not in ("", ".svg"):
            raise click.UsageError(
                f"the chart is an SVG file: name it {file.with_suffix('.svg')}", ctx
            )
        return file


class _ConfigType(click.Path):
    """A TOML file of options. What it sets is taken where the command line says nothing.
    BadParameter for a wrong file.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        import tomllib

        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if ctx is not None:
            names = {name.lstrip("-"): one.name for one in ctx.command.params for name in one.opts}
            try:
                values = tomllib.loads(read_text(file)).items()
            except (ValueError, RecursionError) as error:
                is_yaml = file.suffix in (".yaml", ".yml")
                problem = (
                    "is YAML; options are read from TOML: epochs = 2"
                    if is_yaml
                    else f"is not TOML: {error}"
                )
                raise click.BadParameter(f"{file} {problem}", ctx, param) from None
            given = {
                key.replace("_", "-"): str(one) if type(one) is int else one for key, one in values
            }
            if unknown := next((key for key in given if key not in names), None):
                hint = suggest(f"--{unknown}", [f"--{name}" for name in names]).replace(
                    "Did you mean --", "Did you mean "
                )
                hint = hint or "A key is the name of an option without its dashes."
                raise click.BadParameter(
                    f"{file} sets {unknown}, which is not an option. {hint}", ctx, param
                )
            ctx.default_map = {str(names[key]): one for key, one in given.items()}
        return file


# Types of options, and options that several commands have

Natural: TypeAlias = Annotated[int, click.IntRange(min=0)]
Positive: TypeAlias = Annotated[int, click.IntRange(min=1)]
NonNegative: TypeAlias = Annotated[float, click.FloatRange(min=0)]
GivenFile: TypeAlias = Annotated[Path, click.Path(exists=True, dir_okay=False, path_type=Path)]
DataFile: TypeAlias = Annotated[Path, _DataType(exists=True, dir_okay=False)]
CheckpointName: TypeAlias = Annotated[str, _NameType()]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    _ConfigType(exists=True, dir_okay=False, path_type=Path),
    Option(
        "Read options from this file, such as `epochs = 2`; others given here come first.",
        "--config",
        metavar="FILE.toml",
    ),
]
NewFile: TypeAlias = Annotated[Path, _NewFileType(dir_okay=False, writable=True)]

AccessScopeOption: TypeAlias = Annotated[
    Literal["owned", "accessible"],
    Option("Only your own, or everything you can access.", "--access-scope"),
]
ChartFile: TypeAlias = Annotated[
    Path | None,
    _ChartType(dir_okay=False, writable=True),
    Option("Plot the curves in this file, and on a terminal.", "--plot", metavar="FILE.svg"),
]
CommandURL: TypeAlias = Annotated[
    str | None,
    Option(
        "Base URL of the server. Default: that of `tinker --base-url`, else TINKER_BASE_URL.",
        metavar="URL",
    ),
]
ExpiryOption: TypeAlias = Annotated[
    int | None,
    _ExpiryType(),
    Option("Expire in this many seconds; at least 3600 (an hour).", "--ttl", metavar="SECONDS"),
]
ModelOption: TypeAlias = Annotated[
    str | None,
    Option(
        "A base model, checkpoint or run. Default: the first model.",
        "-m",
        "--model",
        metavar="NAME_OR_PATH",
    ),
]
OffsetOption: TypeAlias = Annotated[Natural, Option("Number of items to skip.", show_default=False)]
PricesOption: TypeAlias = Annotated[
    GivenFile | None,
    Option(
        "Price list (TOML or JSON): prices per million tokens by model. Default: TINKER_PRICES.",
        "--prices",
    ),
]
ChatOptions: TypeAlias = Annotated[
    str | None,
    Option(
        "Options of the chat template, such as '{\"enable_thinking\": false}'.",
        "--chat-template-kwargs",
        metavar="JSON",
    ),
]
TokenizerOption: TypeAlias = Annotated[
    str | None,
    Option(
        "Hugging Face name or folder of the tokenizer. Default: the model's own.",
        "--tokenizer",
        metavar="NAME",
    ),
]
