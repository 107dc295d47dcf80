# generated from openapi.yaml; do not edit
"""Wire models and request functions of the Tinker training and sampling API. Nothing in this package sends anything."""

from typing import Final

#: The version of the contract, `info.version` of openapi.yaml.
CONTRACT_VERSION: Final = "1.6.0"
#: The version of the official client that the contract covers whole, `info.x-official-surface` of openapi.yaml.
OFFICIAL_SURFACE: Final = "0.38.0"
