"""A path that older code imports from; see :mod:`tinker.errors`."""

from tinker.errors import APIConnectionError as APIConnectionError
from tinker.errors import APIError as APIError
from tinker.errors import APIResponseValidationError as APIResponseValidationError
from tinker.errors import APIStatusError as APIStatusError
from tinker.errors import APITimeoutError as APITimeoutError
from tinker.errors import AuthenticationError as AuthenticationError
from tinker.errors import BadRequestError as BadRequestError
from tinker.errors import BillingError as BillingError
from tinker.errors import ConflictError as ConflictError
from tinker.errors import InternalServerError as InternalServerError
from tinker.errors import NotFoundError as NotFoundError
from tinker.errors import PermissionDeniedError as PermissionDeniedError
from tinker.errors import RateLimitError as RateLimitError
from tinker.errors import RequestFailedError as RequestFailedError
from tinker.errors import TinkerError as TinkerError
from tinker.errors import UnprocessableEntityError as UnprocessableEntityError
