"""Fixtures of the tests of manifests."""

from tests.cli.conftest import call

__all__ = ["call"]
