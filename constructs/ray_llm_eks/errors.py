"""The one exception that a user's mistake raises."""

from __future__ import annotations


class ConfigurationError(Exception):
    """Something the user wrote cannot work; the message names the setting and what to write instead.

    Programs that use the library catch this one; command lines print it without a traceback.
    """
