"""Scripted models for tests of agent programs, without a server (see :mod:`hive_frontend.testing`)."""

from hive_frontend.testing import *  # noqa: F403
from hive_frontend.testing import __all__ as __all__
