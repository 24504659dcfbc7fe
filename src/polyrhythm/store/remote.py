"""Opens S3, Google Cloud Storage and Azure with the user's credentials and a limited number of
retries."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from polyrhythm.errors import StoreError
from polyrhythm.store.credentials import aws_settings, plain_http
from polyrhythm.store.faults import explained, shown_url

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

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
