"""Entry point ``sglang.srt.plugins``: registers the hooks of the table, and checks that they took.

SGLang calls :func:`activate` in the launching process before arguments are parsed and again in every scheduler
process.  It only logs a plugin that fails, so :func:`~sglang_patches.contract.activation.verify` is called where a
failure can stop the start: by ``hive.launch_server`` and at the end of ``Scheduler.__init__``.
"""

from __future__ import annotations

import logging

from hive.server.flags.server_args import HiveServerArgs
from sglang_patches.contract import activation, releases

logger = logging.getLogger(__name__)


def activate() -> None:
    """Entry point ``sglang.srt.plugins``: register every active patch, and Hive's sampler, with SGLang."""
    hive = HiveServerArgs.in_environment()
    try:
        activation.register()
        if hive:
            from sglang_patches.forward import sampler
            from sglang_patches.http import warmup

            sampler.register()
            warmup.register()
    except releases.UnsupportedRelease as error:
        # Hive's own launcher refuses to start, see activation.verify(); a stock server is left as it is.
        if not hive and activation.active_patches():
            logger.warning("Hive: nothing is patched: %s", error)
    except Exception as error:
        activation.failed(error)
        raise
