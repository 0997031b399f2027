# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with stores, in one form: OSErrors with an `errno`, and for those, codes and ways out.

fsspec's file systems raise what the libraries below them raise: OSErrors without `errno`, botocore's exceptions,
aiohttp's. They are known here by name, for none of these libraries need be installed.
"""

from __future__ import annotations

import errno
from typing import Any

from trnlab.errors import CacheError
from trnlab.files import way_out, why

NO_CREDENTIALS = errno.ENOKEY if hasattr(errno, "ENOKEY") else 126
_PASSING_NAMES = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ConnectionClosedError",
    "ProxyConnectionError",
    "IncompleteReadError",
    "ResponseStreamingError",
    "HTTPClientError",
    "ConnectionError",
    "ClientConnectorError",
    "ServerDisconnectedError",
    "ClientPayloadError",
    "ClientOSError",
    "FSTimeoutError",
    "TimeoutError",
    "IncompleteRead",
    "ContentLengthError",
    "ServerTimeoutError",
    "SSLError",
    "AioReadTimeoutError",
)
_CREDENTIAL_NAMES = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
    "ProfileNotFound",
    "NoAuthTokenError",
)
_CREDENTIAL_CODES = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
)
_DENIED_CODES = ("AccessDenied", "403", "AllAccessDisabled", "AccountProblem", "KMS.AccessDeniedException")
_PASSING_CODES = (
    "SlowDown",
    "503",
    "ServiceUnavailable",
    "InternalError",
    "500",
    "502",
    "504",
    "RequestTimeout",
    "Throttling",
    "RequestTimeTooSkewed",
    "BandwidthLimitExceeded",
    "TooManyRequests",
    "429",
    "RequestLimitExceeded",
    "OperationAborted",
    "ConditionalRequestConflict",
    "409",
)
_PASSING = (
    errno.EBUSY,
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.ECONNABORTED,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EAGAIN,
)


def translated(error: Exception, url: str) -> OSError:
    """`error` as an OSError with `errno`; FileNotFoundError and FileExistsError as they are. Raises what is a defect
    and no trouble of a store: TypeError and the like."""
    if isinstance(error, FileNotFoundError | FileExistsError):
        return error
    for each in _chain(error):
        found = _errno(each)
        if found is not None:
            return OSError(found, _message(each), url)
    if isinstance(error, OSError):
        return error if error.errno else OSError(errno.EIO, _message(error), url)
    if type(error).__module__.partition(".")[0] in ("botocore", "aiohttp", "aiobotocore", "s3fs", "fsspec", "gcsfs"):
        return OSError(errno.EIO, _message(error), url)
    raise error


def is_passing(error: OSError) -> bool:
    """Whether another try, a little later, may succeed."""
    return error.errno in _PASSING


def explained(what: str, done: str, error: OSError) -> CacheError:
    """The error of what cannot be read, written or cleared (`done`), because a store does not let us."""
    code, remedy = _advice(error)
    return CacheError(f"{what} cannot be {done}: {reason(error)}", code=code, remedy=remedy)


def reason(error: OSError) -> str:
    """What went wrong, in a few words."""
    if error.errno == NO_CREDENTIALS:
        return f"no credentials are accepted ({_short(error)})"
    if is_passing(error):
        return f"the store does not answer ({_short(error)})"
    if isinstance(error, FileNotFoundError) and "bucket" in str(error).lower():
        return "there is no such bucket"
    if error.errno == errno.EIO and error.strerror:
        return _short(error)
    return why(error)


def _advice(error: OSError) -> tuple[str, str]:
    remote = isinstance(error.filename, str) and "://" in error.filename
    if error.errno == NO_CREDENTIALS:
        return "TRN521", "give AWS_PROFILE, AWS_ACCESS_KEY_ID with its secret, or run where a role is attached"
    if remote and error.errno in (errno.EACCES, errno.EPERM):
        return (
            "TRN522",
            "the role needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket, and its KMS key",
        )
    if isinstance(error, FileNotFoundError) and "bucket" in str(error).lower():
        return "TRN523", "check the bucket's name and region (AWS_REGION, AWS_ENDPOINT_URL)"
    if is_passing(error):
        return "TRN524", "try again later; check the network, AWS_ENDPOINT_URL and the rate of requests"
    return "TRN603", way_out(error, "name another place with --cache")


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and not any(error is each for each in found):
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _errno(error: BaseException) -> int | None:
    names = {cls.__name__ for cls in type(error).__mro__}
    response: Any = getattr(error, "response", None)
    code = str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
    if names & set(_CREDENTIAL_NAMES) or code in _CREDENTIAL_CODES:
        return NO_CREDENTIALS
    if code in _DENIED_CODES:
        return errno.EACCES
    if code in _PASSING_CODES or names & set(_PASSING_NAMES):
        return errno.ETIMEDOUT if "imeout" in type(error).__name__ else errno.EBUSY
    return None


def _message(error: BaseException) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__


def _short(error: OSError) -> str:
    return (error.strerror or _message(error)).splitlines()[0][:120]
