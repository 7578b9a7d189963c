"""Models for tests of agent programs: scripted, and without a server (see :mod:`hive_frontend.testing`)."""

from hive_frontend.testing import Script, ScriptedModel, ScriptExhausted

__all__ = ["Script", "ScriptExhausted", "ScriptedModel"]
