"""The table of hooks: what Hive changes in SGLang, where and why, and what breaks if the hooked symbol moves.

Hive extends SGLang only through its plugin API.  Each hook names an upstream symbol and the leading parameters that
it relies on.  ``tests/sglang_patches/test_contract.py`` checks both against the installed SGLang,
``scripts/check_upstream`` checks them against the source of every supported release, and
:func:`sglang_patches.contract.activation.verify` refuses to serve if a hook did not apply.  ``python -m
sglang_patches.contract.describe --write`` writes the table to ``docs/upstream.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sglang_patches.contract.releases import order
from sglang_patches.contract.upstream import (
    ADMISSION,
    ANSWERS,
    BEFORE_FORWARD,
    CACHED_TOKENS,
    COMPLETION_META,
    CONTROL,
    CPU_GRAMMARS,
    CPU_SAMPLER,
    CRASHES,
    DEFAULT_CACHE,
    ENDS,
    FLUSHES,
    FORCED_TOKENS,
    HELD,
    HTTP_PLUGINS,
    JOIN,
    LOOP,
    LORA_BATCHES,
    NEW_GRAMMARS,
    PENALTIES,
    PINNING,
    PLACED_KV,
    QUEUE_ORDER,
    RESULTS,
    SAMPLER_DATA,
    SAMPLES,
    SCHEDULER_START,
    SECRETS,
    SEEDS,
    STREAMED_LOGPROBS,
    Change,
)

Group = Literal["cpu", "hive"]


@dataclass(frozen=True)
class Patch:
    """One hook on one upstream symbol."""

    target: str
    """Dotted path of the upstream function or method."""
    kind: Literal["before", "after", "around", "replace"]
    hook: str
    """``module:function`` inside :mod:`sglang_patches.hooks`."""
    parameters: tuple[str, ...]
    """Names of the upstream parameters that the hook relies on, in order."""
    does: str
    why: str
    breaks: str
    """What a user would see without the hook."""
    upstream: tuple[Change, ...]
    """Changes in SGLang that, together, would make the hook unnecessary."""
    group: Group = "hive"
    """``cpu``: applied wherever the CPU platform is active. ``hive``: applied only under ``hive.launch_server``."""
    since: str | None = None
    """The first release of SGLang that needs the hook; None if all up to ``until`` do."""
    until: str | None = None
    """The last one; None if all later ones do."""


_MANAGERS = "sglang.srt.managers."
_SCHEDULER = _MANAGERS + "scheduler.Scheduler."
_WEIGHTS = _MANAGERS + "scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
_LORA = "sglang.srt.lora.lora_manager.LoRAManager."
_XGRAMMAR = "sglang.srt.constrained.xgrammar_backend."

PATCHES: tuple[Patch, ...] = (
    Patch(
        _XGRAMMAR + "_allocate_token_bitmask",
        "replace",
        "xgrammar_backend:allocate_token_bitmask",
        ("vocab_size", "batch_size"),
        does="Allocates the grammar bitmask in pageable memory.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="On a CPU, grammar-constrained requests crash the scheduler.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammarBackend.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask",
        ("logits", "vocab_mask"),
        does="Applies the bitmask with xgrammar's CPU kernel.",
        why="Upstream supports only CUDA-like devices.",
        breaks="On a CPU, grammar-constrained requests crash the scheduler.",
        upstream=(CPU_GRAMMARS,),
        group="cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammar.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask_of_grammar",
        ("self", "logits", "vocab_mask"),
        does="Does the same for the grammar's own method.",
        why="Upstream supports only CUDA-like devices.",
        breaks="On a CPU, grammar-constrained requests crash the scheduler.",
        upstream=(CPU_GRAMMARS,),
        group="cpu",
    ),
    Patch(
        _LORA + "init_state",
        "around",
        "lora_manager:around_init_state",
        ("self",),
        does="Keeps LoRA tensors that are created at startup out of pinned memory.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="On a CPU, a server with LoRA adapters does not start.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        _LORA + "prepare_lora_batch",
        "around",
        "lora_manager:around_prepare_lora_batch",
        ("self", "forward_batch"),
        does="Keeps each batch's LoRA index tensors out of pinned memory.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="On a CPU, the first request to a server with LoRA adapters ends the server.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        "sglang.srt.lora.backend.chunked_backend.ChunkedSgmvLoRABackend.prepare_lora_batch",
        "around",
        "chunked_backend:around_prepare_lora_batch",
        (
            "self",
            "forward_batch",
            "weight_indices",
            "lora_ranks",
            "scalings",
            "use_cuda_graph",
            "use_prefill_cuda_graph",
        ),
        does="Describes the adapters of a decode step to the device only when they change.",
        why="Upstream copies fifteen small tensors at every step.",
        breaks="Short answers with adapters take about a tenth longer.",
        upstream=(LORA_BATCHES,),
    ),
    Patch(
        "sglang.srt.constrained.base_grammar_backend.BaseGrammarBackend.get_cached_or_future_value",
        "around",
        "base_grammar_backend:around_get_cached_or_future_value",
        ("self", "key", "require_reasoning"),
        does="Gives the samples of a prompt copies of one compiled grammar.",
        why="Upstream compiles a new grammar once for each of them.",
        breaks="Samples with a new grammar take longer to start.",
        upstream=(NEW_GRAMMARS,),
    ),
    Patch(
        "sglang.srt.constrained.grammar_manager.GrammarManager.get_ready_grammar_requests",
        "around",
        "grammar_manager:around_get_ready_grammar_requests",
        ("self",),
        does="Waits up to 2 ms until new grammars are compiled.",
        why="Upstream naps for half a millisecond at a time.",
        breaks="Steps with a new grammar take half a millisecond longer.",
        upstream=(NEW_GRAMMARS,),
    ),
    Patch(
        "sglang.srt.server_args.ServerArgs._handle_cpu_backends",
        "around",
        "server_args:around_handle_cpu_backends",
        ("self",),
        does="Restores the sampling backend chosen by the flags.",
        why="Upstream overrides --sampling-backend on a CPU.",
        breaks="On a CPU, Hive's sampler and the Logits Cache do not run.",
        upstream=(CPU_SAMPLER,),
        until="0.5.17",
    ),
    Patch(
        "sglang.srt.arg_groups.platform_hook.handle_cpu_backends",
        "around",
        "server_args:around_cpu_backends_step",
        ("server_args",),
        does="Declares the sampling backend chosen by the flags again.",
        why="Upstream overrides --sampling-backend on a CPU.",
        breaks="On a CPU, Hive's sampler and the Logits Cache do not run.",
        upstream=(CPU_SAMPLER,),
        since="0.5.23",
    ),
    Patch(
        "sglang.srt.server_args.ServerArgs.__repr__",
        "around",
        "server_args:around_repr",
        ("self",),
        does="Redacts keys and passwords.",
        why="SGLang logs its arguments at startup.",
        breaks="The log contains both API keys.",
        upstream=(SECRETS,),
    ),
    Patch(
        "sglang.srt.entrypoints.engine._server_args_for_logging",
        "around",
        "server_args:around_server_args_for_logging",
        ("server_args",),
        does="Redacts keys and passwords.",
        why="SGLang logs its arguments at startup.",
        breaks="The log contains both API keys.",
        upstream=(SECRETS,),
        since="0.5.23",
    ),
    Patch(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "before",
        "http_server:before_setup_and_run_http_server",
        ("server_args", "tokenizer_manager"),
        does="Adds routes, the request middleware and an error handler to SGLang's app.",
        why="Serves the /hive routes and checks requests before SGLang sees them.",
        breaks="/hive/* returns 404, and a bad request can end the scheduler.",
        upstream=(HTTP_PLUGINS,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager.generate_request",
        "around",
        "tokenizer_manager:around_generate_request",
        ("self", "obj", "request"),
        does=(
            "Checks requests from endpoints whose bodies the request middleware does not check, writes the tag "
            "from the headers into every request, and adds `meta_info.hive` to responses."
        ),
        why="The tag and the checks apply to every endpoint, and clients need to know what was replayed.",
        breaks=(
            "Tags in headers are ignored, bad requests can end the scheduler, and meta_info.hive is missing."
        ),
        upstream=(ANSWERS,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.SignalHandler.running_phase_sigquit_handler",
        "replace",
        "tokenizer_manager:running_phase_sigquit_handler",
        ("self", "signum", "frame"),
        does="Ends the server with status 1 and names the failed process in one line.",
        why="When a process fails, the server must report the cause.",
        breaks="The launcher is killed by SIGKILL, and the cause is buried in the log.",
        upstream=(CRASHES,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager._send_one_request",
        "before",
        "tokenizer_manager:before_send_one_request",
        ("self", "tokenized_obj"),
        does=(
            "Numbers the samples of a request with `n` > 1 in their tags. Hive derives their seeds from the "
            "numbers."
        ),
        why="Each sample of a request with n > 1 needs its own seed.",
        breaks="A request with n > 1 and a seed returns n equal outputs.",
        upstream=(SAMPLES,),
    ),
    Patch(
        "sglang.srt.utils.auth.decide_request_auth",
        "around",
        "auth:around_decide_request_auth",
        ("method", "path", "authorization_header", "api_key", "admin_api_key", "auth_level"),
        does=(
            "Accepts the admin key on every route, and serves `GET /hive/ui` without a key. The page contains no "
            "server data."
        ),
        why=(
            "Operators need the statistics of all tenants, and a browser cannot send a key when it opens a page."
        ),
        breaks=(
            "With both keys set, no key gives access to the statistics of all tenants. With --api-key, /hive/ui "
            "cannot be opened."
        ),
        upstream=(HTTP_PLUGINS,),
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion._build_completion_response",
        "after",
        "serving_completions:after_build_completion_response",
        ("self", "request", "ret", "created"),
        does="Adds `meta_info.hive` to every choice.",
        why="Upstream drops meta_info from /v1/completions.",
        breaks="/v1/completions does not report meta_info.hive.",
        upstream=(COMPLETION_META,),
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_logprobs_tokens",
        "around",
        "serving_chat:around_process_logprobs_tokens",
        ("self", "logprobs", "use_token_index"),
        does="Gives each token of a streamed chunk its own top alternatives.",
        why="Upstream gives every token of a streamed chunk the alternatives of the first.",
        breaks="Streamed chats show wrong top_logprobs for replayed tokens.",
        upstream=(STREAMED_LOGPROBS,),
        until="0.5.17",
    ),
    Patch(
        "sglang.srt.mem_cache.registry.default_radix_cache_factory",
        "around",
        "mem_cache_registry:around_default_radix_cache_factory",
        ("ctx",),
        does=(
            "Builds Hive's subclass instead of `RadixCache` or `HiRadixCache`, and leaves other caches unchanged."
        ),
        why="The radix cache must know agents and evict as --hive-eviction says.",
        breaks="SGLang's LRU evicts the KV, and no KV is attributed to agents.",
        upstream=(DEFAULT_CACHE,),
    ),
    Patch(
        _MANAGERS + "schedule_policy.PrefillAdder.add_one_req",
        "before",
        "schedule_policy:before_add_one_req",
        ("self", "req"),
        does=(
            "Tells a cache with segments how many tokens admission has already promised to other requests."
        ),
        why="A corrector needs slots for tokens that it recomputes, and admission does not count them.",
        breaks="With --hive-kv-segments, a nearly full pool can end the scheduler.",
        upstream=(PLACED_KV,),
        until="0.5.17",
    ),
    Patch(
        _MANAGERS + "schedule_policy.SchedulePolicy.calc_priority",
        "after",
        "schedule_policy:after_calc_priority",
        ("self", "waiting_queue", "running_batch"),
        does="Sorts the waiting queue by the agents' scores, after SGLang's own order.",
        why="Implements --hive-schedule contribution.",
        breaks="--hive-schedule contribution has no effect.",
        upstream=(QUEUE_ORDER,),
    ),
    Patch(
        _SCHEDULER + "__init__",
        "after",
        "scheduler:after_init",
        ("self", "server_args"),
        does="Verifies the hooks, then creates the Logits Cache, the agent registry and the metrics.",
        why="The scheduler process holds Hive's state, and must not start without all hooks.",
        breaks="The scheduler fails at the first request.",
        upstream=(SCHEDULER_START,),
    ),
    Patch(
        _SCHEDULER + "run_event_loop",
        "around",
        "scheduler:around_run_event_loop",
        ("self",),
        does="Reports a scheduler's failure in one line.",
        why="When a process fails, the server must report the cause.",
        breaks="The cause is the last line of a traceback somewhere in the log.",
        upstream=(CRASHES,),
    ),
    Patch(
        _SCHEDULER + "_add_request_to_queue",
        "around",
        "scheduler:around_add_request_to_queue",
        ("self", "req", "is_retracted"),
        does=(
            "Records the request's agent and session, and replays known tokens. A request that finishes in replay"
            " is answered without being queued."
        ),
        why="At this point the request is validated and its limits are set, but it is not queued yet.",
        breaks="The Logits Cache never serves a token, and agents have no counters.",
        upstream=(ADMISSION, ENDS),
    ),
    Patch(
        _SCHEDULER + "process_batch_result",
        "around",
        "scheduler:around_process_batch_result",
        ("self", "batch", "result"),
        does=(
            "Records the logits row behind each new token, reports the probabilities of distinct samples, and "
            "releases finished requests."
        ),
        why="Only here can rows be matched to requests as their outputs grow.",
        breaks="The Logits Cache stays empty, and agents have no counters.",
        upstream=(RESULTS, ENDS),
    ),
    Patch(
        _SCHEDULER + "get_next_batch_to_run",
        "around",
        "scheduler:around_get_next_batch_to_run",
        ("self", "running_batch", "last_batch"),
        does="Runs a slice of each replay in progress, and releases requests that the engine drops.",
        why=(
            "A long replay is cut into slices, one per scheduler loop. Other replays wait for a row or for an "
            "earlier sample."
        ),
        breaks="Requests that need more than one slice of replay are never answered.",
        upstream=(LOOP, ENDS),
    ),
    Patch(
        _SCHEDULER + "is_fully_idle",
        "after",
        "scheduler:after_is_fully_idle",
        ("self", "for_health_check"),
        does="Reports a scheduler with requests in replay as busy.",
        why="SGLang does not count requests in replay.",
        breaks="A long replay pauses for a second between slices.",
        upstream=(HELD,),
    ),
    Patch(
        _SCHEDULER + "on_idle",
        "around",
        "scheduler:around_on_idle",
        ("self",),
        does="Prefetches: replays next samples of known states before they are requested.",
        why="An idle scheduler has time to prefetch before it sleeps.",
        breaks="Nothing is prefetched.",
        upstream=(LOOP,),
    ),
    Patch(
        _SCHEDULER + "run_batch",
        "before",
        "scheduler:before_run_batch",
        ("self", "batch"),
        does="Counts the batch, and adds the constraints of distinct samples to its sampling info.",
        why="The sampler needs the constraints, and `/hive/stats` reports how full batches are.",
        breaks="Distinct samples can repeat.",
        upstream=(BEFORE_FORWARD, SAMPLER_DATA),
    ),
    Patch(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        "around",
        "model_runner:around_forward",
        ("self", "forward_batch"),
        does=(
            "Runs short extends as decode rows (`--hive-decode-rows`). With `--hive-kv-segments`, it also copies "
            "placed KV, computes virtual rows, and shifts the positions of tokens behind a choreography's "
            "messages."
        ),
        why="A decode step is one CUDA graph. Stored KV can be placed and corrected behind any context.",
        breaks=(
            "Short extends take several times as long. Placed segments hold the KV of other requests, and "
            "choreographies return nonsense."
        ),
        upstream=(PLACED_KV,),
        until="0.5.17",
    ),
    Patch(
        _SCHEDULER + "is_disable_overlap_for_batch",
        "after",
        "scheduler:after_is_disable_overlap_for_batch",
        ("self", "batch", "last_batch"),
        does="Disables overlap when the last batch has a distinct sample that follows an earlier one.",
        why="Such a sample must know its last token before it draws the next one.",
        breaks="Distinct samples can repeat under overlap scheduling.",
        upstream=(BEFORE_FORWARD,),
    ),
    Patch(
        _SCHEDULER + "abort_request",
        "around",
        "scheduler:around_abort_request",
        ("self", "recv_req"),
        does="Also aborts requests in replay, and releases requests that left the queue.",
        why="Requests in replay are in no queue of the engine.",
        breaks="Requests in replay cannot be aborted, and an aborted distinct sample blocks its state.",
        upstream=(HELD, ENDS),
    ),
    Patch(
        _SCHEDULER + "_abort_on_waiting_timeout",
        "around",
        "scheduler:around_abort_on_waiting_timeout",
        ("self",),
        does="Releases requests that timed out in the queue.",
        why="A request that timed out must leave Hive's accounting.",
        breaks="A distinct sample that timed out in the queue blocks its state.",
        upstream=(ENDS,),
        until="0.5.17",
    ),
    Patch(
        _SCHEDULER + "get_new_batch_prefill",
        "around",
        "scheduler:around_get_new_batch_prefill",
        ("self", "running_batch"),
        does=(
            "Moves replayed requests with resident KV from the queue into the decode batch, and merges the decode"
            " batch with a prefill of few tokens."
        ),
        why=(
            "A replayed request with resident KV needs no prefill, and a prefill of few tokens need not stall the"
            " decode batch."
        ),
        breaks=(
            "Every replayed request costs a prefill pass, and every prefill stalls the requests that decode."
        ),
        upstream=(JOIN,),
    ),
    Patch(
        _SCHEDULER + "flush_cache",
        "after",
        "scheduler:after_flush_cache",
        ("self",),
        does="Flushes the Logits Cache after a successful flush.",
        why="A flush must empty the Logits Cache, too.",
        breaks="/flush_cache leaves the Logits Cache warm.",
        upstream=(FLUSHES,),
    ),
    Patch(
        _SCHEDULER + "get_internal_state",
        "after",
        "scheduler:after_get_internal_state",
        ("self", "recv_req"),
        does="Adds Hive's summary to the scheduler's state.",
        why="/server_info shows Hive's counters.",
        breaks="Hive's counters are missing from /server_info.",
        upstream=(CONTROL,),
    ),
    Patch(
        _SCHEDULER + "handle_dumper_control",
        "around",
        "scheduler:around_handle_dumper_control",
        ("self", "recv_req"),
        does="Handles messages whose names begin with `hive:`, and passes on all others.",
        why="This is SGLang's only typed IPC message that carries JSON in both directions.",
        breaks="/hive/* fails.",
        upstream=(CONTROL,),
    ),
    *(
        Patch(
            _WEIGHTS + f"update_weights_from_{source}",
            "after",
            "scheduler:after_update_weights",
            ("self", "recv_req"),
            does="Flushes the Logits Cache.",
            why="New weights invalidate every recorded distribution.",
            breaks="Replay serves tokens of the old weights.",
            upstream=(FLUSHES,),
        )
        for source in ("disk", "distributed", "tensor", "ipc")
    ),
    Patch(
        _MANAGERS + "utils.GenerationBatchResult.copy_to_cpu",
        "before",
        "managers_utils:before_copy_to_cpu",
        ("self",),
        does="Starts the copy of the recorded rows on the stream that copies the drawn tokens.",
        why="On a GPU, the rows reach the host together with the tokens, without an extra wait.",
        breaks="Recording stalls the overlap scheduler.",
        upstream=(SAMPLER_DATA,),
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.prepare_for_extend",
        "after",
        "schedule_batch:after_prepare_for_extend",
        ("self",),
        does="Limits `cached_tokens` of replayed requests to the prompt's length.",
        why="Upstream also counts replayed output tokens as cached.",
        breaks="cached_tokens can exceed prompt_tokens.",
        upstream=(CACHED_TOKENS,),
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "replace",
        "schedule_batch:cumulate_penalty_output_tokens",
        ("self",),
        does=(
            "Gives penalties the token at a fixed position of each request, instead of the last known token."
        ),
        why="Upstream's penalties depend on which batches ran in between.",
        breaks="With penalties, outputs depend on other requests.",
        upstream=(PENALTIES,),
    ),
    Patch(
        _MANAGERS + "schedule_batch.Req.update_finish_state",
        "around",
        "schedule_batch:around_update_finish_state",
        ("self", "new_accepted_len"),
        does="Ends a request whose remaining tokens its grammar dictates.",
        why="Upstream runs a decode step for each of them, the stop token included.",
        breaks="Answers under a grammar take one or more decode steps longer.",
        upstream=(FORCED_TOKENS,),
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        "after",
        "sampling_batch_info:after_from_schedule_batch",
        ("cls", "batch"),
        does=(
            "Fills the seeds, adds earlier output tokens to the penalties, and tells the sampler which "
            "truncations it needs."
        ),
        why=(
            "Every request needs a seed, and penalties must count tokens that were generated before this batch."
        ),
        breaks="The sampler has no seeds, and every request fails.",
        upstream=(SEEDS, PENALTIES),
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward",
        "after",
        "sampling_batch_info:after_copy_for_forward",
        ("self",),
        does="Moves the constraints of distinct samples to the copy; they apply to one step.",
        why="The constraints must reach the sampler.",
        breaks="Distinct samples can repeat under overlap scheduling.",
        upstream=(SAMPLER_DATA,),
    ),
)


def patches_of(release: str) -> tuple[Patch, ...]:
    """Return the hooks that a release of SGLang needs."""
    return tuple(
        patch
        for patch in PATCHES
        if (patch.since is None or order(patch.since) <= order(release))
        and (patch.until is None or order(release) <= order(patch.until))
    )
