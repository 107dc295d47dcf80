"""tinker: an independent client for the Tinker training and sampling API.

    import tinker

    service = tinker.ServiceClient(base_url="local://")
    training = service.create_lora_training_client(base_model="tinker/babble", rank=16)

Names load on first use, so that importing the package costs next to nothing.
"""

from typing import TYPE_CHECKING

from tinker._basics.lazy import LazyNames, find_made_modules
from tinker._version import OPEN_VERSION as OPEN_VERSION
from tinker._version import __title__ as __title__
from tinker._version import __version__ as __version__

if TYPE_CHECKING:
    from httpx import Timeout as Timeout

    from tinker import auth as auth
    from tinker import checkpoints as checkpoints
    from tinker import circuit_breaker as circuit_breaker
    from tinker import data as data
    from tinker import errors as errors
    from tinker import lib as lib
    from tinker import local as local
    from tinker import observing as observing
    from tinker import proto as proto
    from tinker import recovery as recovery
    from tinker import regularizers as regularizers
    from tinker import testing as testing
    from tinker import types as types
    from tinker import usage as usage
    from tinker import wire as wire
    from tinker._basics.config import Config as Config
    from tinker._older import RequestOptions as RequestOptions
    from tinker._tokenizers import get_tokenizer as get_tokenizer
    from tinker.admin_client import AdminClient as AdminClient
    from tinker.circuit_breaker import CircuitBreaker as CircuitBreaker
    from tinker.custom_loss import LossHandle as LossHandle
    from tinker.custom_loss import PerDatumLossFn as PerDatumLossFn
    from tinker.custom_loss import with_gradients as with_gradients
    from tinker.errors import APIConnectionError as APIConnectionError
    from tinker.errors import APIError as APIError
    from tinker.errors import APIResponseValidationError as APIResponseValidationError
    from tinker.errors import APIStatusError as APIStatusError
    from tinker.errors import APITimeoutError as APITimeoutError
    from tinker.errors import AuthenticationError as AuthenticationError
    from tinker.errors import BadRequestError as BadRequestError
    from tinker.errors import BillingError as BillingError
    from tinker.errors import CircuitOpenError as CircuitOpenError
    from tinker.errors import ClientClosedError as ClientClosedError
    from tinker.errors import ConflictError as ConflictError
    from tinker.errors import ExperimentalWarning as ExperimentalWarning
    from tinker.errors import InternalServerError as InternalServerError
    from tinker.errors import LossTermError as LossTermError
    from tinker.errors import NotFoundError as NotFoundError
    from tinker.errors import PermissionDeniedError as PermissionDeniedError
    from tinker.errors import PrecedingRequestFailed as PrecedingRequestFailed
    from tinker.errors import RateLimitError as RateLimitError
    from tinker.errors import RefusedResultError as RefusedResultError
    from tinker.errors import RequestFailedError as RequestFailedError
    from tinker.errors import ResponseTooLargeError as ResponseTooLargeError
    from tinker.errors import SampleStreamError as SampleStreamError
    from tinker.errors import SessionLostError as SessionLostError
    from tinker.errors import TinkerError as TinkerError
    from tinker.errors import UnknownIdentityError as UnknownIdentityError
    from tinker.errors import UnprocessableEntityError as UnprocessableEntityError
    from tinker.futures import APIFuture as APIFuture
    from tinker.observing.progress import progress as progress
    from tinker.rest_client import RestClient as RestClient
    from tinker.sampling_client import SamplingClient as SamplingClient
    from tinker.service_client import ServiceClient as ServiceClient
    from tinker.streaming import SampleStream as SampleStream
    from tinker.training_client import TrainingClient as TrainingClient
    from tinker.types import AdamOptimizerConfig as AdamOptimizerConfig
    from tinker.types import AdamParams as AdamParams
    from tinker.types import Checkpoint as Checkpoint
    from tinker.types import CheckpointType as CheckpointType
    from tinker.types import Datum as Datum
    from tinker.types import DimuonOptimizerConfig as DimuonOptimizerConfig
    from tinker.types import DimuonParams as DimuonParams
    from tinker.types import DmelChunk as DmelChunk
    from tinker.types import EncodedTextChunk as EncodedTextChunk
    from tinker.types import ForwardBackwardOutput as ForwardBackwardOutput
    from tinker.types import ImageAssetPointerChunk as ImageAssetPointerChunk
    from tinker.types import ImageChunk as ImageChunk
    from tinker.types import LoraConfig as LoraConfig
    from tinker.types import LossFnType as LossFnType
    from tinker.types import ModelID as ModelID
    from tinker.types import ModelInput as ModelInput
    from tinker.types import ModelInputChunk as ModelInputChunk
    from tinker.types import OptimParams as OptimParams
    from tinker.types import OptimStepRequest as OptimStepRequest
    from tinker.types import OptimStepResponse as OptimStepResponse
    from tinker.types import ParsedCheckpointTinkerPath as ParsedCheckpointTinkerPath
    from tinker.types import PromptProvenanceSpan as PromptProvenanceSpan
    from tinker.types import SampledProvenanceSpan as SampledProvenanceSpan
    from tinker.types import SampledSequence as SampledSequence
    from tinker.types import SampleRequest as SampleRequest
    from tinker.types import SampleResponse as SampleResponse
    from tinker.types import SamplingParams as SamplingParams
    from tinker.types import StopReason as StopReason
    from tinker.types import TensorData as TensorData
    from tinker.types import TensorDtype as TensorDtype
    from tinker.types import TrainingRun as TrainingRun

    BackcompatSamplingClientFuture = SamplingClient
    BackcompatTrainingClientFuture = TrainingClient
else:  # type checkers know the names above; with this function they would believe in every name
    _names = LazyNames(
        __name__,
        starred=("auth", "types"),
        unlisted={"local": None, "proto": "google.protobuf", "testing": None},
        hints={
            "Client": "tinker.ServiceClient",
            "GenerationConfig": "tinker.SamplingParams",
            **dict.fromkeys(("Adam", "AdamW"), "tinker.AdamParams"),
            "AutoTokenizer": "tinker.get_tokenizer(model_name)",
            **dict.fromkeys(
                ("DPOConfig", "DPOTrainer", "KTOTrainer", "ORPOTrainer"),
                "forward_backward_custom and optim_step in a loop",
            ),
            **dict.fromkeys(
                (
                    "GRPOConfig",
                    "GRPOTrainer",
                    "PPOConfig",
                    "PPOTrainer",
                    "RLOOConfig",
                    "RLOOTrainer",
                ),
                "forward_backward and optim_step in a loop, or the command `tinker train --grpo`",
            ),
            **dict.fromkeys(
                ("SFTConfig", "SFTTrainer", "Trainer", "TrainingArguments", "train"),
                "forward_backward and optim_step in a loop, or the command `tinker train`",
            ),
            **dict.fromkeys(
                ("AutoModelForCausalLM", "FastLanguageModel", "get_peft_model"),
                "tinker.ServiceClient().create_lora_training_client(base_model=...)",
            ),
            **dict.fromkeys(
                ("LLM", "generate", "pipeline", "sample"),
                "tinker.ServiceClient().create_sampling_client(base_model=...).sample(...)",
            ),
            **dict.fromkeys(
                ("api_key", "init", "login"),
                "tinker.ServiceClient(api_key=...), or the command `tinker auth login`",
            ),
            "load_dataset": "datasets.load_dataset, and make a tinker.Datum of each row",
        },
    )
    __getattr__, __dir__ = _names.load, _names.list
    __path__ += find_made_modules(__name__)
