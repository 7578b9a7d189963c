"""What the rest of Hive asks of a release of SGLang, because releases answer differently."""

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
    """One release of SGLang; see :data:`sglang_patches.contract.releases.SUPPORTED`."""

    storing: ClassVar[type]
    """The base of ``AgentAware``: the methods by which requests enter the tree, over its ``storing_for``."""

    decode_rows: ClassVar[bool] = False
    """Whether forward passes are batches that :mod:`sglang_patches.forward.decode_rows` can put together anew."""

    unset_params: ClassVar[frozenset[str]] = frozenset()
    """Sampling parameters that this SGLang's endpoints name, as None, and that Hive lets no request set."""

    # The radix cache.

    @abstractmethod
    def other_caches(self, ctx: TreeCacheBuildContext) -> dict[str, bool]:
        """Reasons to serve with a cache of SGLang's own that Hive does not extend, and which of them hold."""

    @abstractmethod
    def on_host(self, node: TreeNode) -> bool:
        """Whether a node has its KV in host memory."""

    @abstractmethod
    def announce_removal(self, tree: Any, leaf: TreeNode) -> None:
        """Tell those who subscribe to KV events that a leaf of a radix cache is gone."""

    # Joining the decode batch.

    @abstractmethod
    def keeps_prefixes(self, scheduler: Scheduler) -> bool:
        """Whether the scheduler's cache keeps what requests leave for others."""

    @abstractmethod
    def adapter_fits(self, scheduler: Scheduler, req: Req, adapters: set[str | None]) -> bool:
        """Whether a batch with these LoRA adapters has a place for that of the request."""

    @abstractmethod
    def is_resident(self, req: Req, length: int) -> bool:
        """Whether the match of ``init_next_round_input`` found the first ``length`` tokens on the device."""

    @abstractmethod
    def take_resident(self, scheduler: Scheduler, req: Req, length: int) -> None:
        """Lock the request's match, and give it a row of slots that holds these ``length`` tokens."""

    def lend(self, scheduler: Scheduler, req: Req, length: int) -> bool:
        """Put the first ``length`` tokens of a running request into the tree; False where that cannot be done."""
        return False

    @abstractmethod
    def process_prebuilt(self, scheduler: Scheduler, batch: ScheduleBatch) -> None:
        """The second half of entering the decode batch, after ``prepare_for_prebuilt``."""

    # Requests and the sampler.

    @abstractmethod
    def cache_salt(self, req: Req) -> str:
        """What keeps a request's KV apart from others with the same tokens, beside ``extra_key``."""

    @abstractmethod
    def attach_sampling_masks(
        self, sampler: Any, output: Any, probabilities: torch.Tensor | None, info: Any, chosen: torch.Tensor
    ) -> None:
        """Write what ``return_sampling_mask`` asks for into the logits output.

        Args:
            sampler: An instance of SGLang's ``Sampler``.
            output: The ``LogitsProcessorOutput``.
            probabilities: ``[batch, vocabulary]`` after the temperature, which may be overwritten; None where
                every request is greedy.
            info: The ``SamplingBatchInfo``.
            chosen: Ids, int32 ``[batch]``.
        """
