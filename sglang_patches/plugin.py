"""Entry point ``sglang.srt.plugins``: registers the hooks of the table and verifies that they applied.

SGLang calls :func:`activate` in the launching process before it parses arguments, and again in every scheduler
process. It only logs a plugin that fails.  Therefore ``hive.launch_server`` and the end of ``Scheduler.__init__``
call :func:`~sglang_patches.contract.activation.verify`, where a failure can stop the start.
"""

from __future__ import annotations

import logging

from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.contract import activation, releases

logger = logging.getLogger(__name__)


def activate() -> None:
    """Register every active patch, Hive's sampler and Hive's warm-up with SGLang."""
    hive = HiveServerArgs.in_environment()
    try:
        activation.register()
        if hive:
            from sglang_patches.forward import sampler
            from sglang_patches.http import warmup

            sampler.register()
            warmup.register()
    except releases.UnsupportedRelease as error:
        # Hive's own launcher refuses to start, see activation.verify(). A stock server stays unpatched.
        if not hive and activation.active_patches():
            logger.warning("Hive: SGLang is not patched: %s", error)
    except Exception as error:
        activation.record_failure(error)
        raise
