"""Hive's state on a request of the engine, and what Hive reads from a request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hive_frontend.wire import derive_seed, sample_seed

from hive.server.agents.registry import OTHER
from hive.server.agents.tenant import qualified
from hive.server.eviction.accounting import Use
from hive.server.kv_segments.request import KV_FIELD
from hive.server.logits_cache.cache import CachedRequest
from hive.server.logits_cache.hotspot import HotspotRule
from hive.server.logits_cache.replay import Replay
from hive.server.logits_cache.sampling import SamplingRule
from hive.server.request_tag import tag_in
from sglang_patches.contract.releases import current

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.mem_cache.radix_cache import TreeNode

    from sglang_patches.requests.kv_state import KvState

REPLAYED_KEY = "hive_replayed"
"""Key of ``Req.customized_info``: a 1 per replayed token, which the tokenizer process counts."""

PROBABILITY_KEY = "hive_probability"
"""Key of ``Req.customized_info``: for a distinct sample, the log-probability of its tokens so far, per token."""

ARRIVAL_KEY = "__hive_arrival"
"""Key of ``custom_params`` for what the HTTP process says about a request.  Requests of clients may have no key that
begins with two underscores.
"""

KV_KEY = "hive_kv"
"""Key of ``Req.customized_info``: at the first token, the sources of the KV of the request's context."""

REPEATS_KEY = "hive_repeats"
"""Key of ``Req.customized_info``: for a distinct sample, whether it may equal an earlier one, per token."""


@dataclass(slots=True)
class RequestState:
    """Hive's state on a request of the engine, as ``Req.hive``."""

    agent: str | None
    session: str | None = None
    use: Use | None = None
    """The request's identity in the radix cache's accounting, once it is admitted."""
    number: int = 0
    """Its number in the order of arrival of all requests."""
    began: float = field(default_factory=time.monotonic)
    """When this rank got it, for records only: decisions must not depend on a clock."""
    arrived_at: float = 0.0
    """When it arrived, in seconds of the schedulers' shared time; 0.0 if unknown."""
    answers_person: bool = False
    """Whether a person reads the answer, if it comes to a natural end."""
    cached: CachedRequest | None = None
    """None if the request bypasses the Logits Cache."""
    replay: Replay | None = None
    """The replay in progress, if any."""
    arrived_with: int = 0
    """Output tokens that were replayed before the model ran."""
    forced: int = 0
    """Tokens at the end of the output that were not drawn, because the grammar dictated them."""
    may_join: bool = False
    """Whether all its KV may be resident, so that it can join the decode batch without a prefill."""
    finished: bool = False
    leaf: TreeNode | None = None
    """The last node that it has added to the radix tree."""
    kv: KvState | None = None
    """None if it neither uses the segment store nor stores segments."""


def tag_of(req: Req) -> dict[str, Any]:
    """Return the request's tag in wire format."""
    return tag_in(req.sampling_params.custom_params)


@dataclass(frozen=True, slots=True)
class Arrival:
    """What the HTTP process says about a request.

    One process stamps the time, so that all ranks decide by the same one: schedulers decide nothing by their clocks.
    """

    at: float
    """Seconds of the HTTP process's monotonic clock."""
    answers_person: bool = False
    """Whether a person reads the answer, if it comes to a natural end."""

    def to_wire(self) -> dict[str, float | bool]:
        return {"at": self.at, "answers_person": self.answers_person}

    @classmethod
    def of(cls, req: Req) -> Arrival | None:
        """Return what arrived with a request; None for requests of the engine itself."""
        stamped = (req.sampling_params.custom_params or {}).get(ARRIVAL_KEY)
        return cls(**stamped) if isinstance(stamped, dict) else None


def identity_of(req: Req) -> tuple[str | None, str | None]:
    """Return the agent and the session of a request, by names that include its tenant."""
    tag = tag_of(req)
    tenant, agent, session = tag.get("tenant"), tag.get("agent"), tag.get("session")
    if tenant is not None:
        # Anonymous requests without an agent are counted together with agents over the limit.
        agent = qualified(tenant, agent or OTHER)
    return agent, session if session is None else qualified(tenant, session)


def keep_apart(req: Req) -> None:
    """Make the tenant part of the key by which the radix cache separates requests.

    This includes requests without a tenant: their ``extra_key`` must not be able to name another tenant.
    """
    tenant = tag_of(req).get("tenant")
    if tenant or req.extra_key:
        req.extra_key = _encoded(tenant or "", req.extra_key or "")


def seed_of(req: Req) -> int:
    """Return the seed of the request's sample; it is fixed at the first call.

    Samples of a state are numbered. Sample 0 has the request's own seed, and each other sample has a seed derived
    from it. A request without a seed gets one derived from its names, so (session, state, sample) identifies a draw
    that a program can repeat.
    """
    params = req.sampling_params
    attached: RequestState | None = getattr(req, "hive", None)
    if attached is None:
        params.sampling_seed = _seed(req, tag_of(req).get("sample", 0))
    return params.sampling_seed  # type: ignore[no-any-return]


def next_seed_of(req: Req) -> int | None:
    """Return the seed of the next sample of the request's state; None for requests that do not number their samples."""
    tag = tag_of(req)
    has_base_seed = "state" in tag or req.sampling_params.sampling_seed is not None
    return _seed(req, tag["sample"] + 1) if "sample" in tag and has_base_seed else None


def _seed(req: Req, sample: int) -> int:
    base = req.sampling_params.sampling_seed
    if base is None:
        tag = tag_of(req)
        base = derive_seed(tag.get("session", ""), tag["state"]) if "state" in tag else derive_seed(req.rid)
    return sample_seed(base, sample)


def bypass_reason(scheduler: Scheduler, req: Req) -> str | None:
    """Return why a request bypasses the Logits Cache, or None if it does not."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    params = req.sampling_params
    reasons = {
        "asked_off": tag_of(req).get("replay") == "off",
        "no_output": params.max_new_tokens == 0,
        "kv_segments": KV_FIELD in (params.custom_params or {}),
        "multimodal": req.multimodal_inputs is not None,
        "input_embeddings": req.input_embeds is not None or req.positional_embed_overrides is not None,
        "engine_session": req.session is not None,
        "logit_processor": req.custom_logit_processor is not None,
        "reasoning": req.require_reasoning,
        "input_logprobs": req.return_logprob and 0 <= req.logprob_start_len < len(req.origin_input_ids),
        "hidden_states": req.return_hidden_states,
        "sampling_mask": req.return_sampling_mask,
        "routed_experts": req.return_routed_experts or req.return_indexer_topk,
        "speculative": not scheduler.spec_algorithm.is_none(),
        "diffusion": scheduler.dllm_config is not None,
        "disaggregation": scheduler.disaggregation_mode != DisaggregationMode.NULL,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_penalised(req: Req) -> bool:
    """Whether the request's logits depend on the tokens that it generated."""
    params = req.sampling_params
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0) or (
        params.min_new_tokens > 0
    )


def cached_request(req: Req, seed: int, next_seed: int | None, *, share_tenants: bool) -> CachedRequest:
    """Return what the Logits Cache must know about a request."""
    params, tag = req.sampling_params, tag_of(req)
    return CachedRequest(
        namespace=_namespace(req, share_tenants),
        rule=SamplingRule.of_params(params),
        seed=seed,
        prompt=req.origin_input_ids,
        policy=tag.get("replay", "stepwise"),
        hotspot=HotspotRule(
            **{
                name: tag[f"hotspot_{name}"]
                for name in ("threshold", "top_k", "decay")
                if f"hotspot_{name}" in tag
            }
        ),
        ending=_encoded(
            params.max_new_tokens,
            params.ignore_eos,
            sorted(params.stop_strs or []),
            sorted(params.stop_regex_strs or []),
            sorted(params.stop_token_ids or []),
        ),
        next_seed=next_seed,
    )


def _namespace(req: Req, share_tenants: bool) -> str:
    """Return everything besides its tokens that the distributions of a request's states depend on.

    An adapter gets a new id when it is reloaded.  Rows are recorded after biases, penalties and the grammar's mask.
    Penalties and the grammar start at the end of the prompt, so the prompt's length matters.
    """
    params = req.sampling_params
    tag = tag_of(req)
    tenant = "" if share_tenants else tag.get("tenant", "")
    shapes: list[Any] = [
        (kind, grammar)
        for kind in ("json_schema", "regex", "ebnf", "structural_tag")
        if (grammar := getattr(params, kind)) is not None
    ]
    if is_penalised(req):
        shapes.append(
            (
                "penalties",
                params.frequency_penalty,
                params.presence_penalty,
                params.repetition_penalty,
                params.min_new_tokens,
                sorted(params.stop_token_ids or []) if params.min_new_tokens else None,
            )
        )
    if shapes:
        shapes.append(("prompt", len(req.origin_input_ids)))
    if params.logit_bias:
        shapes.append(
            ("bias", sorted((str(token), float(bias)) for token, bias in params.logit_bias.items()))
        )
    return _encoded(
        tenant,
        tag.get("scope", ""),
        req.lora_id or "",
        req.extra_key or "",
        current().cache_salt(req),
        *shapes,
    )


def _encoded(*parts: Any) -> str:
    """Encode a list of parts as one string; length prefixes make the encoding unambiguous."""
    return "".join(f"{len(text)}:{text}" for text in map(str, parts))


def came_to_natural_end(req: Req) -> bool:
    """Whether a request's output ended by itself: not by its limit, an abort or an error."""
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR, FINISH_MATCHED_TOKEN

    return isinstance(req.finished_reason, (FINISH_MATCHED_TOKEN, FINISH_MATCHED_STR))


def is_aborted(req: Req) -> bool:
    """Whether a request ended without a result of its own: aborted, refused or timed out."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    return isinstance(req.finished_reason, FINISH_ABORT)
