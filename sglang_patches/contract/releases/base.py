"""The interface to everything that differs between releases of SGLang."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.radix_cache import TreeNode
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext


class Release(ABC):
    """Adapter of one release; see :data:`sglang_patches.contract.releases.SUPPORTED`."""

    storing: ClassVar[type]
    """Base class of ``AgentAware``: the methods that store requests in the tree, wrapped in its ``storing_for``."""

    decode_rows: ClassVar[bool] = False
    """Whether :mod:`sglang_patches.forward.decode_rows` can rebuild this release's forward batches."""

    unset_params: ClassVar[frozenset[str]] = frozenset()
    """Sampling parameters that this SGLang's endpoints pass as None, and that Hive lets no request set."""

    # The radix cache.

    @abstractmethod
    def other_caches(self, ctx: TreeCacheBuildContext) -> dict[str, bool]:
        """Return the reasons to use a cache that Hive does not extend, and whether each one holds."""

    @abstractmethod
    def on_host(self, node: TreeNode) -> bool:
        """Whether a node has its KV in host memory."""

    @abstractmethod
    def announce_removal(self, tree: Any, leaf: TreeNode) -> None:
        """Publish the removal of a radix cache's leaf to subscribers of KV events."""

    # Joining the decode batch.

    @abstractmethod
    def keeps_prefixes(self, scheduler: Scheduler) -> bool:
        """Whether the scheduler's cache keeps the prefixes of finished requests for other requests."""

    @abstractmethod
    def adapter_fits(self, scheduler: Scheduler, req: Req, adapters: set[str | None]) -> bool:
        """Whether a batch with these LoRA adapters can also take the request's adapter."""

    @abstractmethod
    def is_resident(self, req: Req, length: int) -> bool:
        """Whether the match of ``init_next_round_input`` found the first ``length`` tokens on the device."""

    @abstractmethod
    def take_resident(self, scheduler: Scheduler, req: Req, length: int) -> None:
        """Lock the request's match, and allocate a row of slots that holds these ``length`` tokens."""

    def lend(self, scheduler: Scheduler, req: Req, length: int) -> bool:
        """Store the first ``length`` tokens of a running request in the tree; return False if that is impossible."""
        return False

    @abstractmethod
    def process_prebuilt(self, scheduler: Scheduler, batch: ScheduleBatch) -> None:
        """Finish entering the decode batch, after ``prepare_for_prebuilt``."""

    # Requests and the sampler.

    @abstractmethod
    def cache_salt(self, req: Req) -> str:
        """Return what separates the request's KV from others with the same tokens, in addition to ``extra_key``."""

    @abstractmethod
    def attach_sampling_masks(
        self, sampler: Any, output: Any, probabilities: torch.Tensor | None, info: Any, chosen: torch.Tensor
    ) -> None:
        """Write the sampling masks requested by ``return_sampling_mask`` to the logits output.

        Args:
            sampler: An instance of SGLang's ``Sampler``.
            output: The ``LogitsProcessorOutput``.
            probabilities: ``[batch, vocabulary]`` after the temperature; may be overwritten. None if every request is
                greedy.
            info: The ``SamplingBatchInfo``.
            chosen: Drawn ids, int32 ``[batch]``.
        """
