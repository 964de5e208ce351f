"""Commands that show what the inspection finds."""

from tests.cli.conftest import oncegate

__all__ = ["oncegate"]
