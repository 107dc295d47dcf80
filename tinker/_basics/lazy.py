"""Names that a package loads on first use, and imports that Ctrl-C cannot interrupt.

The names are spelled once: as imports under ``TYPE_CHECKING``, for type checkers.

To learn where each name comes from, the code of the package runs a second time, with an import that
loads nothing and records what it is asked for. ``TYPE_CHECKING`` is such a record as well, and
true, so this run enters the block. The code comes from the frame that creates the names, so no
source file is needed.
"""

from __future__ import annotations

import _thread
import builtins
import os
import sys
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, wraps
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_OF_THE_MECHANISM = ("__future__", "typing", __name__)


class LazyNames:
    """The names of a package: ``load`` is its ``__getattr__``, and ``list`` its ``__dir__``.

    ``__all__`` has every name but submodules, except those in ``starred``. ``dir`` leaves out
    ``unlisted`` submodules, unless the module that stands beside one is installed. ``hints`` says
    what to use instead of a name that does not exist.
    """

    def __init__(
        self,
        package: str,
        *,
        starred: Collection[str] = (),
        unlisted: Mapping[str, str | None] = MappingProxyType({}),
        hints: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._module = sys.modules[package]
        self._code = sys._getframe(1).f_code  # pyright: ignore[reportPrivateUsage]
        self._package, self._starred, self._unlisted, self._hints = (
            package,
            starred,
            unlisted,
            hints,
        )

    @cached_property
    def _homes(self) -> dict[str, tuple[str, str]]:
        """Return the module of each name, and its name there. The module of a submodule is the
        package.
        """
        names: dict[str, object] = {"__builtins__": {**vars(builtins), "__import__": _Recorded}}
        exec(self._code, names)  # noqa: S102  (our own code)
        homes = {
            name: (value.module, value.name)
            for name, value in names.items()
            if isinstance(value, _Recorded)
        }
        return {
            name: home
            for name, home in homes.items()
            if home[1].isidentifier() and home[0] not in _OF_THE_MECHANISM
        }

    def load(self, name: str) -> object:
        """Return a name's value, which the package keeps. Raises AttributeError if
        there is none.
        """
        value = self._find(name)
        setattr(self._module, name, value)
        return value

    def _find(self, name: str) -> object:
        if name == "__all__":
            return [
                one
                for one, (home, _) in self._homes.items()
                if home != self._package or one in self._starred
            ]
        if name not in self._homes:
            if not name.startswith("_") and _is_installed(f"{self._package}.{name}"):
                return import_module(f"{self._package}.{name}")
            from tinker_records import suggest_name

            hint = (
                f"; use {self._hints[name]}"
                if name in self._hints
                else suggest_name(name, self._homes)
            )
            is_import = sys._getframe(2).f_code.co_name == "_handle_fromlist"  # pyright: ignore[reportPrivateUsage]
            # another name of `from package import name` may be a module
            if is_import and name in self._hints:
                raise ImportError(
                    f"cannot import name {name!r} from {self._package!r}{hint}", name=self._package
                )
            raise AttributeError(f"module {self._package!r} has no attribute {name!r}{hint}")
        home, name_there = self._homes[name]
        return (
            import_module(f"{home}.{name}")
            if home == self._package
            else getattr(import_module(home), name_there)
        )

    def list(self) -> list[str]:
        """Return the public names and the package's special attributes."""
        special = {name for name in vars(self._module) if name.startswith("__")}
        unlisted = {
            name
            for name, needed in self._unlisted.items()
            if needed is None or not _is_installed(needed)
        }
        return sorted((special | self._homes.keys()) - unlisted)


def shield(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function that runs on a separate thread, where Ctrl-C does not interrupt it; the
    caller waits, and gets what it returns or raises.

    Use it for what imports modules or starts threads. Both take locks in Python code: a caller that
    is interrupted just after it has taken one never releases it, and every thread that imports
    waits forever. So the thread and its lock come from `_thread`, whose code is not Python. If the
    caller is interrupted, the function still runs to its end. It sees no context variables.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        returned: list[T] = []
        raised: list[BaseException] = []
        ended = _thread.allocate_lock()

        def run() -> None:
            try:
                returned.append(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - the caller raises it
                raised.append(error)
            finally:
                ended.release()

        ended.acquire()
        _thread.start_new_thread(run, ())
        ended.acquire()  # for as long as the function takes
        if raised:
            raise raised.pop()
        return returned.pop()

    return call


def find_made_modules(package: str) -> list[str]:
    """Return the folder of the modules that are made for a package; none in a wheel, where they are
    in the package's own folder.
    """
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    folder = os.path.join(checkout, "generated", "older", *package.split("."))
    return [folder] if os.path.isdir(folder) else []


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


class _Recorded:
    """Where an import would find a module or a name. The class stands in for ``__import__``, and
    loads nothing.
    """

    def __init__(self, module: str, *_: object, name: str = "") -> None:
        self.module, self.name = module, name

    def __getattr__(self, name: str) -> _Recorded:
        return _Recorded(self.module, name=name)
