"""Hooks on ``sglang.srt.managers.scheduler.Scheduler``: replay on arrival, control messages, flushes.

Each scheduler process owns one :class:`SchedulerState`.  All tensor-parallel ranks see the same requests in the
same order and draw from the same numbers, so they decide alike without talking: nothing here reads a clock or
polls an event to make a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hive.agents.registry import AgentRegistry
from hive.logits_cache.cache import CachedRequest, LogitsCache
from hive.logits_cache.replay import Stop
from hive.logits_cache.sampling import SamplingRule, derive_seed
from hive.server_args import HiveServerArgs
from sglang_patches.metrics import SchedulerMetrics
from sglang_patches.plugin import verify
from sglang_patches.sampler import ROWS_ATTRIBUTE, HiveSampler

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import DumperControlReqInput
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

CONTROL_PREFIX = "hive:"
"""Marks Hive's messages on the one control channel that carries JSON both ways (``/dumper``)."""

REPLAYED_KEY = "hive_replayed"
"""Key of ``Req.customized_info``: a 1 per replayed token; the tokenizer process counts them."""


@dataclass(slots=True)
class SchedulerState:
    """What Hive keeps in a scheduler process."""

    agents: AgentRegistry
    cache: LogitsCache | None
    """None when ``--no-hive-logits-cache`` was given or another sampler runs."""
    metrics: SchedulerMetrics | None

    def summary(self) -> dict[str, Any]:
        return {"logits_cache": self.cache.summary() if self.cache else None, **self.agents.summary()}


@dataclass(slots=True)
class RequestState:
    """What Hive attaches to a request of the engine, as ``Req.hive``."""

    agent: str | None
    cached: CachedRequest | None
    """None when the Logits Cache takes no part."""
    arrived_with: int
    """Output tokens that replay put in before the model ran."""


def tag_of(req: Req) -> dict[str, Any]:
    """The request's tag in wire format; checked at the door, so only its presence is in question."""
    tag = (req.sampling_params.custom_params or {}).get("hive")
    return tag if isinstance(tag, dict) else {}


def seed_of(req: Req) -> int:
    """The request's seed: its own, or one derived from what names its sample; fixed at the first call.

    A state's samples are numbered, so (session, state, sample) names a draw that a program can repeat.
    """
    params = req.sampling_params
    if params.sampling_seed is None:
        tag = tag_of(req)
        if "state" in tag:
            params.sampling_seed = derive_seed(tag.get("session", ""), tag["state"], tag.get("sample", 0))
        else:
            params.sampling_seed = derive_seed(req.rid)
    return params.sampling_seed  # type: ignore[no-any-return]


def bypass_reason(scheduler: Scheduler, req: Req) -> str | None:
    """Why the Logits Cache takes no part in a request, or None if it does."""
    from sglang.srt.disaggregation.utils import DisaggregationMode

    params = req.sampling_params
    reasons = {
        "asked_off": tag_of(req).get("replay") == "off",
        "no_output": params.max_new_tokens == 0,
        "multimodal": req.multimodal_inputs is not None,
        "input_embeddings": req.input_embeds is not None or req.positional_embed_overrides is not None,
        "engine_session": req.session is not None,
        "penalties": params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1,
        "min_new_tokens": params.min_new_tokens > 0,
        "logit_bias": params.logit_bias is not None,
        "logit_processor": req.custom_logit_processor is not None,
        "reasoning": req.require_reasoning,
        "logprobs": req.return_logprob,
        "hidden_states": req.return_hidden_states,
        "sampling_mask": req.return_sampling_mask,
        "routed_experts": req.return_routed_experts or req.return_indexer_topk,
        "speculative": not scheduler.spec_algorithm.is_none(),
        "diffusion": scheduler.dllm_config is not None,
        "disaggregation": scheduler.disaggregation_mode != DisaggregationMode.NULL,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def namespace_of(req: Req) -> str:
    """Everything beside its tokens that the distributions of a request's states depend on.

    Tenants share nothing.  A grammar masks the rows and starts where the prompt ends, so both are part of it.
    """
    params = req.sampling_params
    parts: list[str] = [tag_of(req).get("tenant", ""), req.extra_key or ""]
    for kind in ("json_schema", "regex", "ebnf", "structural_tag"):
        grammar = getattr(params, kind)
        if grammar is not None:
            parts += [kind, str(grammar), str(len(req.origin_input_ids))]
    # Length prefixes keep two lists of parts from spelling the same name.
    return "".join(f"{len(part)}:{part}" for part in parts)


def after_init(_result: None, self: Scheduler, *_args: Any, **_kwargs: Any) -> None:
    """Set up Hive's state; refuse to serve if a hook was lost in this process."""
    verify()
    args = HiveServerArgs.from_environment()
    ours = isinstance(self.tp_worker.model_runner.sampler, HiveSampler)
    cache = LogitsCache(args.logits_cache_bytes) if args.logits_cache and ours else None
    # One rank per tensor-parallel group counts for all.
    counting = self.server_args.enable_metrics and self.metrics_reporter.is_stats_logging_rank
    metrics = SchedulerMetrics() if counting else None
    self.hive = SchedulerState(AgentRegistry(args.max_agents), cache, metrics)


def around_add_request_to_queue(
    original: Callable[..., None], self: Scheduler, req: Req, is_retracted: bool = False
) -> None:
    """Replay a new request; what is finished then never reaches the queue."""
    from sglang.srt.managers.utils import is_health_check_generate_req

    fresh = not (is_retracted or req.is_retracted or len(req.output_ids) or hasattr(req, "hive"))
    if not fresh or req.finished() or req.to_finish is not None or is_health_check_generate_req(req):
        original(self, req, is_retracted)
        return

    seed = seed_of(req)
    state: SchedulerState = self.hive
    tag = tag_of(req)
    req.hive = RequestState(tag.get("agent"), None, 0)
    state.agents.arrived(tag.get("agent"), tag.get("session"), len(req.origin_input_ids))
    if state.cache is not None:
        reason = bypass_reason(self, req)
        if reason is not None:
            state.cache.bypass(reason)
        else:
            params = req.sampling_params
            rule = SamplingRule.of(params.temperature, params.top_k, params.top_p, params.min_p)
            req.hive.cached = CachedRequest(namespace_of(req), rule, seed, req.origin_input_ids)
            if _replay(self, req):
                return
    original(self, req, is_retracted)


def _replay(scheduler: Scheduler, req: Req) -> bool:
    """Put the tokens that kept distributions decide into the request; whether they finish it."""

    def take(token: int) -> bool:
        req.output_ids.append(token)
        if req.grammar is not None:
            req.grammar.accept_token(token)
        req.update_finish_state()
        if req.grammar is not None:
            req.grammar.finished = req.finished()
        return not req.finished()

    state: SchedulerState = scheduler.hive
    outcome = state.cache.replay(req.hive.cached, take)  # type: ignore[union-attr]
    req.hive.arrived_with = outcome.tokens
    if outcome.tokens == 0:
        return False
    req.customized_info = {REPLAYED_KEY: [1] * outcome.tokens}
    finished = outcome.stop is Stop.FINISHED
    if finished:
        req.time_stats.set_wait_queue_entry_time()
        req.time_stats.set_quick_finish_time()
        finish(scheduler, req)
    if finished or req.stream:
        scheduler.output_streamer.stream_output([req], req.return_logprob)
    return finished


def finish(scheduler: Scheduler, req: Req) -> None:
    """A request ended: write its distributions back and count it."""
    state: SchedulerState = scheduler.hive
    attached: RequestState = req.hive
    if attached.cached is not None and state.cache is not None:
        state.cache.write_back(attached.cached, req.output_ids)
        # Req is part of a reference cycle: what hangs on it would wait for the garbage collector.
        attached.cached = None
    counts = {
        "cached_tokens": req.cached_tokens,
        "generated": len(req.output_ids) - attached.arrived_with,
        "replayed": attached.arrived_with,
    }
    state.agents.left(attached.agent, **counts)
    if state.metrics is not None:
        state.metrics.finished(state.agents.profile(attached.agent).name, len(req.origin_input_ids), **counts)
        state.metrics.cache(state.cache)


def around_process_batch_result(
    original: Callable[..., None], self: Scheduler, batch: ScheduleBatch, result: Any
) -> None:
    """Record the rows of a step, and see off the requests that ended in it.

    Row i of a batch belongs to ``batch.reqs[i]`` if and only if that request's output grew by exactly one token:
    a chunk of a longer prefill, a retracted request and overlap scheduling's late row do not grow it.
    """
    before = [(req, len(req.output_ids), req.finished()) for req in batch.reqs]
    original(self, batch, result)
    cache = self.hive.cache
    output = getattr(result, "logits_output", None)
    rows: Any = getattr(output, ROWS_ATTRIBUTE, None)
    for i, (req, length, was_finished) in enumerate(before):
        attached: RequestState | None = getattr(req, "hive", None)
        if attached is None:
            continue
        recording = rows is not None and cache is not None and attached.cached is not None
        if recording and len(req.output_ids) == length + 1:
            cache.record(attached.cached, length, rows.packed(i))
        if req.finished() and not was_finished:
            finish(self, req)
    if rows is not None:
        delattr(output, ROWS_ATTRIBUTE)


def after_update_weights(_result: Any, self: Any, *_args: Any, **_kwargs: Any) -> None:
    """New weights make every kept distribution wrong, whatever ``flush_cache`` says of the KV cache.

    ``self`` is the scheduler's weight updater.
    """
    cache: LogitsCache | None = self.scheduler.hive.cache
    if cache is not None:
        cache.flush()


def after_flush_cache(success: bool, self: Scheduler, *_args: Any, **_kwargs: Any) -> bool:
    """An operator who flushes the KV cache wants a cold start of this one, too."""
    if success and self.hive.cache is not None:
        self.hive.cache.flush()
    return success


def after_get_internal_state(result: Any, self: Scheduler, *_args: Any, **_kwargs: Any) -> Any:
    """``/server_info`` shows Hive's counters."""
    result.internal_state["hive"] = self.hive.summary()
    return result


def around_handle_dumper_control(
    original: Callable[..., None], self: Scheduler, recv_req: DumperControlReqInput
) -> None:
    """Hive's control messages; everything else is SGLang's."""
    from sglang.srt.managers.io_struct import DumperControlReqOutput

    if not recv_req.method.startswith(CONTROL_PREFIX):
        original(self, recv_req)
        return
    answer = _control(self.hive, recv_req.method.removeprefix(CONTROL_PREFIX), recv_req.body)
    self.ipc_channels.send_to_tokenizer.send_output(
        DumperControlReqOutput(success=True, response=[answer]), recv_req
    )


def _control(state: SchedulerState, operation: str, body: dict[str, Any]) -> dict[str, Any]:
    """One control message; bodies come from :mod:`sglang_patches.http_server`, which checked them."""
    if operation == "register":
        state.agents.register(body["name"], body.get("description", ""), body.get("session"))
        return {}
    if operation == "end_session":
        return {"requests": state.agents.end_session(body["session"])}
    return state.summary()
