"""The exceptions that a user's mistake raises."""

from __future__ import annotations


class ConfigurationError(Exception):
    """Something the user wrote cannot work; the message names the setting and what to write instead.

    Programs that use the library catch this one; command lines print it without a traceback.
    """


class DocumentError(ConfigurationError):
    """A file cannot be read as a YAML document; says where, if a place is known.

    Args:
        path: the file, as the user named it.
        reason: what is wrong and what to write instead.
        line: 1-based line, 0 if none.
        column: 1-based column, 0 if none.
    """

    def __init__(self, path: str, reason: str, line: int = 0, column: int = 0) -> None:
        self.path = path
        self.reason = reason
        self.line = line
        self.column = column
        place = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{place}: {reason}")
