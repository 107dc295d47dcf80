"""The settings of a client, read once from arguments and the environment."""

from tinker._config.config import CONNECTIONS as CONNECTIONS
from tinker._config.config import Config as Config
from tinker._config.config import WireChoice as WireChoice
from tinker._config.config import check_headers as check_headers
from tinker._config.config import explain_missing_certificates as explain_missing_certificates
from tinker._config.config import is_loopback as is_loopback
from tinker._config.config import is_sendable as is_sendable
from tinker._config.config import is_telemetry_unset as is_telemetry_unset
from tinker._config.config import load_config as load_config
from tinker._config.config import load_later as load_later
from tinker._config.config import local_dir as local_dir
from tinker._config.config import login_shell as login_shell
from tinker._config.config import override as override
from tinker._config.config import prices_file as prices_file
from tinker._config.config import serve_api_key as serve_api_key
from tinker._config.config import show_url as show_url
from tinker._config.proxies import PORTS as PORTS
from tinker._config.proxies import Proxies as Proxies
from tinker._config.trust import Trust as Trust
