"""Models for tests of agent programs: scripted, and without a server (see :mod:`hive_frontend.testing`)."""

from hive_frontend.testing import ScriptedModel

__all__ = ["ScriptedModel"]
