"""Opens S3, Google Cloud Storage and Azure with the user's credentials and a limited number of
retries."""

import configparser
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from polyrhythm.errors import StoreError
from polyrhythm.store.faults import explained, shown_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config


_FROM_FILE = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
"""For each setting in the shared AWS files, its name in obstore."""
_KEYS = ("access_key_id", "secret_access_key", "session_token")
_VARIABLES = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
}
_OTHER_SOURCES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_ENDPOINTS = {
    "s3": _VARIABLES["endpoint"],
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}


def aws_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a profile in the shared AWS files, without those that environment variables
    set.

    The profile is `AWS_PROFILE`, or `default`. If the environment has credentials, none of the
    profile's credentials is used.

    obstore reads the usual environment variables by itself (`AWS_ACCESS_KEY_ID`,
    `AWS_ENDPOINT_URL`, `AWS_REGION`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`
    and so on). It does not read the shared files of the AWS tools, so this module does. A variable
    takes precedence over a file.
    """
    home = Path(environment.get("HOME", "~")).expanduser()
    profile = environment.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    sections = 0
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", profile if profile == "default" else f"profile {profile}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile),
    ):
        path = Path(environment.get(variable) or home / ".aws" / file).expanduser()
        settings = _section(path, section)
        sections += settings is not None
        found |= {
            _FROM_FILE[key]: value for key, value in (settings or {}).items() if key in _FROM_FILE
        }
    if "AWS_PROFILE" in environment and not sections:
        raise StoreError(f"AWS_PROFILE is {profile!r}, and the AWS files have no such profile")
    if "AWS_ACCESS_KEY_ID" in environment or any(name in environment for name in _OTHER_SOURCES):
        for key in _KEYS:
            found.pop(key, None)
    for key, variables in _VARIABLES.items():
        if any(environment.get(variable) for variable in variables):
            found.pop(key, None)
    return found


def plain_http(scheme: str, environment: Mapping[str, str], endpoint: str | None) -> bool:
    """Whether the endpoint in the environment or in the user's files (`endpoint`) begins with
    http://, so that the connection has no TLS."""
    endpoints = [environment.get(variable, "") for variable in _ENDPOINTS[scheme]]
    return any(url.startswith("http://") for url in (*endpoints, endpoint or ""))


def _section(path: Path, section: str) -> Mapping[str, str] | None:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (OSError, configparser.Error, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise StoreError(f"cannot read the AWS settings in {path}: {reason}") from None
    return dict(parser[section]) if parser.has_section(section) else None


_RETRIES = 3
_RETRY_S, _CONNECT_S, _SILENCE_S, _REQUEST_S = 15, 5, 30, 600
"""Time limits in seconds: for all retries together, for connecting, for a silence while reading, and for
one request. So a store that refuses connections fails after some seconds, and a silent store after about
30 s."""


def open_remote(url: str) -> "ObjectStore":
    """Open s3://, gs:// or az://. The store is not contacted yet."""
    from obstore.store import AzureStore, GCSStore, S3Store

    with explained("open", shown_url(url)):
        parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise StoreError(
            f"cannot open {shown_url(url)}: give credentials by environment variables, not in the"
            " URL, which commands and journals show"
        )
    if not parts.netloc:
        raise StoreError(f"cannot open {url}: it names no bucket, as in {parts.scheme}://BUCKET")
    settings: S3Config = {}
    if parts.scheme == "s3":
        settings.update(aws_settings(os.environ))  # type: ignore[typeddict-item]
    client = _client(allow_http=plain_http(parts.scheme, os.environ, settings.get("endpoint")))
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/") or None
    with explained("open", shown_url(url)):
        if parts.scheme == "s3":
            return S3Store(
                bucket,
                prefix=prefix,
                config=settings,
                client_options=client,
                retry_config=_retries(),
            )
        opened = GCSStore if parts.scheme == "gs" else AzureStore
        return opened(bucket, prefix=prefix, client_options=client, retry_config=_retries())


def _client(*, allow_http: bool) -> "ClientConfig":
    return {
        "allow_http": allow_http,
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "read_timeout": timedelta(seconds=_SILENCE_S),
        "timeout": timedelta(seconds=_REQUEST_S),
    }


def _retries() -> "RetryConfig":
    return {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=_RETRY_S),
        "backoff": {
            "init_backoff": timedelta(milliseconds=200),
            "max_backoff": timedelta(seconds=3),
            "base": 2,
        },
    }
