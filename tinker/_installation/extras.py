"""What the extras of this package add, the command that installs what is missing, and packages that
change internals.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

# elsewhere they would need a compiler; h11 and asyncio do without
_WHEELS = "platform_machine in 'x86_64 AMD64 aarch64 arm64'"
_SERVER = (
    "starlette>=0.40",
    "uvicorn>=0.30",
    "prometheus_client>=0.20",
    f"httptools>=0.6.4; {_WHEELS}",
    f"uvloop>=0.21; sys_platform != 'win32' and implementation_name == 'cpython' and {_WHEELS}",
)
_LOCAL = (*_SERVER, "transformers>=4.57", "jinja2>=3.1.6", "safetensors>=0.4")
_TORCH = "torch>=2.4"
# 3 GB less on Linux
_WITHOUT_CUDA = " (without a GPU, add --extra-index-url https://download.pytorch.org/whl/cpu)"
# The modules of packages that are not called as they are.
_MODULES = {"pillow": "PIL", "protobuf": "google.protobuf", "python-socks": "python_socks"}
#: What each extra adds; pyproject.toml says the same.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": (_TORCH,),
    "tokenizers": ("transformers>=4.45", "jinja2>=3.1.6"),
    "zstd": ("zstandard>=0.22",),
    "proto": ("protobuf>=4.21",),
    "aiohttp": (),
    "socks": ("python-socks[asyncio]>=2.5", "socksio>=1"),
    "hub": ("huggingface_hub>=0.25",),
    "server": _SERVER,
    "ray": ("ray>=2.40",),
    "quantize": ("bitsandbytes>=0.50", "accelerate>=1.1"),
    "local": _LOCAL,
    "models": (*_LOCAL, f"{_TORCH},<=2.13.0", "peft>=0.17", "pillow>=10.1"),
}


def install_command(extra: str) -> str:
    """Return the command that installs what ``extra`` adds and this environment lacks.

    It names the packages instead of ``tinker[extra]``, which is the official SDK on the package
    index.
    """
    import shlex

    # others are for some platforms only
    needed = [requirement for requirement in EXTRAS[extra] if ";" not in requirement]
    missing = [requirement for requirement in needed if not _is_installed(requirement)] or needed
    hint = (
        _WITHOUT_CUDA
        if any(one.startswith(_TORCH) for one in missing) and sys.platform == "linux"
        else ""
    )
    return f"pip install {shlex.join(missing)}{hint}"


def _is_installed(requirement: str) -> bool:
    name = requirement.partition(">=")[0].partition("[")[0]
    try:
        return find_spec(_MODULES.get(name, name)) is not None
    except ModuleNotFoundError:  # the package above it is missing
        return False


#: Packages that change internals of the official client, to no effect here; by distribution: the
#: module, and what to do.
PATCHING_PACKAGES = {
    "twinkle-kit": (
        "twinkle_client",
        "twinkle_client.init_tinker_client() has no effect on this client, because it changes "
        "internals of the official one; "
        "pass its headers yourself: ServiceClient(wire='json', default_headers_overrides="
        "twinkle_client.http.headers.build_routing_headers(REQUEST_ID, f'Bearer {KEY}'))",
    ),
}
