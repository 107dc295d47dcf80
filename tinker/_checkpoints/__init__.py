"""Checkpoints on this machine: downloads, uploads, archives, merged models, and copies to a hub."""

from tinker._checkpoints import archives as archives
from tinker._checkpoints import hub as hub
from tinker._checkpoints import merging as merging
from tinker._checkpoints.adapter import CONFIG as CONFIG
from tinker._checkpoints.adapter import PEFT_PREFIX as PEFT_PREFIX
from tinker._checkpoints.adapter import WEIGHTS as WEIGHTS
from tinker._checkpoints.adapter import LocalAdapter as LocalAdapter
from tinker._checkpoints.adapter import check_config as check_config
from tinker._checkpoints.adapter import read_adapter as read_adapter
from tinker._checkpoints.adapter import read_json as read_json
from tinker._checkpoints.transfers import FileSource as FileSource
from tinker._checkpoints.transfers import Uploading as Uploading
from tinker._checkpoints.transfers import fetch as fetch
from tinker._checkpoints.transfers import in_utc as in_utc
from tinker._checkpoints.transfers import save_url as save_url
