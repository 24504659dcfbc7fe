"""Finds the credentials and endpoints of object stores in the usual places.

obstore reads the usual environment variables by itself (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
`AWS_REGION`, `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME` and so on). It does not
read the shared files of the AWS tools, so this module does. A variable takes precedence over a
file.
"""

import configparser
from collections.abc import Mapping
from pathlib import Path

from polyrhythm.errors import StoreError

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
    profile's credentials is used."""
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
