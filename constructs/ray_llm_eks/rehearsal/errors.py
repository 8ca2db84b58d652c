"""How a rehearsal ends badly. Both are printed as one message, without a traceback."""

from __future__ import annotations

from ray_llm_eks.errors import ConfigurationError


class RehearsalFailed(Exception):
    """The application did not start, did not answer, or did not do what it must; the message says what was seen."""


class NotRehearsable(ConfigurationError):
    """This machine, or this Serve config, cannot be rehearsed; the message says why and what to do."""
