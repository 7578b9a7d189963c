"""The one table of hooks: what Hive changes in SGLang, where, why, and what breaks if it moves.

SGLang is extended through its plugin API alone.  A hook names its upstream symbol and the leading parameters
it relies on; ``tests/sglang_patches/test_contract.py`` checks both against the installed SGLang,
``scripts/check_upstream`` against the source of every supported one, and
:func:`sglang_patches.contract.activation.verify` refuses to serve when one of them did not apply.
``docs/upstream.md`` shows the table to readers: ``python -m sglang_patches.contract.describe --write`` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    HELD,
    HTTP_PLUGINS,
    JOIN,
    LOOP,
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
    """Names of the upstream parameters the hook relies on, in order."""
    does: str
    why: str
    breaks: str
    """What a user would see if the symbol moved and the hook were lost."""
    upstream: tuple[Change, ...]
    """Changes in SGLang that would, together, make the hook unnecessary."""
    group: Group = "hive"
    """``cpu``: applied wherever the CPU platform is active; ``hive``: only under ``hive.launch_server``."""
    only: str | None = None
    """The one release of SGLang that needs the hook, of :data:`~sglang_patches.contract.releases.SUPPORTED`; None:
    all do.
    """


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
        does="Makes the bitmask of a grammar in ordinary memory.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="Grammar-constrained requests crash the scheduler on a CPU.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammarBackend.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask",
        ("logits", "vocab_mask"),
        does="Applies the bitmask with xgrammar's CPU kernel.",
        why="Upstream raises for devices that are not CUDA-like.",
        breaks="Grammar-constrained requests crash the scheduler on a CPU.",
        upstream=(CPU_GRAMMARS,),
        group="cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammar.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask_of_grammar",
        ("self", "logits", "vocab_mask"),
        does="The same for the method of that name.",
        why="Upstream raises for devices that are not CUDA-like.",
        breaks="Grammar-constrained requests crash the scheduler on a CPU.",
        upstream=(CPU_GRAMMARS,),
        group="cpu",
    ),
    Patch(
        _LORA + "init_state",
        "around",
        "lora_manager:around_init_state",
        ("self",),
        does="Leaves tensors unpinned that layers with adapters make as the server starts.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="A server with LoRA adapters does not start on a CPU.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        _LORA + "prepare_lora_batch",
        "around",
        "lora_manager:around_prepare_lora_batch",
        ("self", "forward_batch"),
        does="Leaves tensors unpinned that say which request of a batch has which adapter.",
        why="Pinned memory needs an NVIDIA driver.",
        breaks="The first request to a server with LoRA adapters kills it on a CPU.",
        upstream=(PINNING,),
        group="cpu",
    ),
    Patch(
        "sglang.srt.server_args.ServerArgs._handle_cpu_backends",
        "around",
        "server_args:around_handle_cpu_backends",
        ("self",),
        does="Puts back the sampler that the flags named.",
        why="Upstream overrides --sampling-backend on a CPU.",
        breaks="Hive's sampler and the Logits Cache do not run on a CPU.",
        upstream=(CPU_SAMPLER,),
        only="0.5.17",
    ),
    Patch(
        "sglang.srt.arg_groups.platform_hook.handle_cpu_backends",
        "around",
        "server_args:around_cpu_backends_step",
        ("server_args",),
        does="Declares the sampler that the flags named once more.",
        why="Upstream overrides --sampling-backend on a CPU.",
        breaks="Hive's sampler and the Logits Cache do not run on a CPU.",
        upstream=(CPU_SAMPLER,),
        only="0.5.23",
    ),
    Patch(
        "sglang.srt.server_args.ServerArgs.__repr__",
        "around",
        "server_args:around_repr",
        ("self",),
        does="Hides keys and passwords.",
        why="SGLang logs its arguments as it starts.",
        breaks="The log has both API keys.",
        upstream=(SECRETS,),
    ),
    Patch(
        "sglang.srt.entrypoints.engine._server_args_for_logging",
        "around",
        "server_args:around_server_args_for_logging",
        ("server_args",),
        does="Hides keys and passwords.",
        why="SGLang logs its arguments as it starts.",
        breaks="The log has both API keys.",
        upstream=(SECRETS,),
        only="0.5.23",
    ),
    Patch(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "before",
        "http_server:before_setup_and_run_http_server",
        ("server_args", "tokenizer_manager"),
        does="Adds routes, middleware and an error handler to SGLang's app.",
        why="The /hive routes, and the door that checks requests.",
        breaks="/hive/* answers 404, and a bad request can kill the scheduler.",
        upstream=(HTTP_PLUGINS,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager.generate_request",
        "around",
        "tokenizer_manager:around_generate_request",
        ("self", "obj", "request"),
        does=(
            "Checks requests of endpoints whose bodies the door leaves alone, writes the tag of the headers into all "
            "of them, and `meta_info.hive` into answers."
        ),
        why="Headers say who asks, whatever the endpoint, and answers what was done.",
        breaks="Tags of headers are ignored, bad requests can kill the scheduler, and meta_info.hive is missing.",
        upstream=(ANSWERS,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.SignalHandler.running_phase_sigquit_handler",
        "replace",
        "tokenizer_manager:running_phase_sigquit_handler",
        ("self", "signum", "frame"),
        does="Ends the server with status 1, and says in one line which process failed.",
        why="A server that has lost a process says why it ends.",
        breaks="The launcher is killed by SIGKILL, and the cause is somewhere in the log.",
        upstream=(CRASHES,),
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager._send_one_request",
        "before",
        "tokenizer_manager:before_send_one_request",
        ("self", "tokenized_obj"),
        does="Numbers the samples of a request with `n` > 1 in their tags, from which their seeds are derived.",
        why="Each sample of a request with n > 1 has a seed of its own.",
        breaks="n > 1 with a seed gives n equal outputs.",
        upstream=(SAMPLES,),
    ),
    Patch(
        "sglang.srt.utils.auth.decide_request_auth",
        "around",
        "auth:around_decide_request_auth",
        ("method", "path", "authorization_header", "api_key", "admin_api_key", "auth_level"),
        does=(
            "Lets the admin key open every route, and `GET /hive/ui` through without a key; the page holds nothing of "
            "the server."
        ),
        why="Operators see the statistics of all tenants, and a browser cannot send a key with the address of a page.",
        breaks="With both keys, nobody sees the statistics of all tenants; with --api-key, /hive/ui cannot be opened.",
        upstream=(HTTP_PLUGINS,),
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion._build_completion_response",
        "after",
        "serving_completions:after_build_completion_response",
        ("self", "request", "ret", "created"),
        does="Adds `meta_info.hive` to every choice.",
        why="Upstream drops meta_info on /v1/completions.",
        breaks="/v1/completions does not say what was done.",
        upstream=(COMPLETION_META,),
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_logprobs_tokens",
        "around",
        "serving_chat:around_process_logprobs_tokens",
        ("self", "logprobs", "use_token_index"),
        does="Has each token take the alternatives at its own place.",
        why="Upstream gives every token of a streamed chunk the first one's alternatives.",
        breaks="Streamed chats show wrong top_logprobs for replayed tokens.",
        upstream=(STREAMED_LOGPROBS,),
        only="0.5.17",
    ),
    Patch(
        "sglang.srt.mem_cache.registry.default_radix_cache_factory",
        "around",
        "mem_cache_registry:around_default_radix_cache_factory",
        ("ctx",),
        does=(
            "Builds Hive's subclass where `RadixCache` or `HiRadixCache` would be built, and lets all "
            "other kinds be."
        ),
        why="The radix cache knows agents, and evicts as --hive-eviction says.",
        breaks="KV is evicted by SGLang's LRU, and agents have no residency.",
        upstream=(DEFAULT_CACHE,),
    ),
    Patch(
        _MANAGERS + "schedule_policy.PrefillAdder.add_one_req",
        "before",
        "schedule_policy:before_add_one_req",
        ("self", "req"),
        does="Tells a cache with segments how many tokens are promised to requests that were admitted before.",
        why="What a corrector computes again takes slots that admission does not reckon with.",
        breaks="With --hive-kv-segments, a pool that is nearly full can end the scheduler.",
        upstream=(PLACED_KV,),
        only="0.5.17",
    ),
    Patch(
        _MANAGERS + "schedule_policy.SchedulePolicy.calc_priority",
        "after",
        "schedule_policy:after_calc_priority",
        ("self", "waiting_queue", "running_batch"),
        does="Sorts the waiting queue once more, by the scores of the agents.",
        why="The order of the waiting queue by contribution (--hive-schedule contribution).",
        breaks="--hive-schedule contribution does nothing.",
        upstream=(QUEUE_ORDER,),
    ),
    Patch(
        _SCHEDULER + "__init__",
        "after",
        "scheduler:after_init",
        ("self", "server_args"),
        does="Checks that the hooks took, and makes Logits Cache, registry and metrics.",
        why="Hive's state in the scheduler process, and the check that no hook was lost there.",
        breaks="The scheduler fails at the first request.",
        upstream=(SCHEDULER_START,),
    ),
    Patch(
        _SCHEDULER + "run_event_loop",
        "around",
        "scheduler:around_run_event_loop",
        ("self",),
        does="Says in one line what a scheduler failed of.",
        why="A server that has lost a process says why it ends.",
        breaks="The cause is the last line of a traceback somewhere in the log.",
        upstream=(CRASHES,),
    ),
    Patch(
        _SCHEDULER + "_add_request_to_queue",
        "around",
        "scheduler:around_add_request_to_queue",
        ("self", "req", "is_retracted"),
        does="Notes who asks, and replays known tokens; what ends by that is answered at once.",
        why="Replay: the request is validated and clamped, but not queued yet.",
        breaks="The Logits Cache never serves a token, and agents have no counts.",
        upstream=(ADMISSION, ENDS),
    ),
    Patch(
        _SCHEDULER + "process_batch_result",
        "around",
        "scheduler:around_process_batch_result",
        ("self", "batch", "result"),
        does=(
            "Records the row behind each new token, reports probabilities of distinct samples, and sees "
            "off what has finished."
        ),
        why="Recording: rows are matched to requests as their outputs grow.",
        breaks="The Logits Cache stays empty, and agents have no counts.",
        upstream=(RESULTS, ENDS),
    ),
    Patch(
        _SCHEDULER + "get_next_batch_to_run",
        "around",
        "scheduler:around_get_next_batch_to_run",
        ("self", "running_batch", "last_batch"),
        does="Gives each replay in progress a slice, and sees off requests that the engine gives up.",
        why="A long replay is cut into slices, one for each loop; others wait for a row, or for an earlier sample.",
        breaks="Requests with more than a slice to replay are never answered.",
        upstream=(LOOP, ENDS),
    ),
    Patch(
        _SCHEDULER + "is_fully_idle",
        "after",
        "scheduler:after_is_fully_idle",
        ("self", "for_health_check"),
        does="Says that a scheduler with requests in replay is not idle.",
        why="A request that replays is as unfinished as one in the queue.",
        breaks="A long replay pauses for a second between slices.",
        upstream=(HELD,),
    ),
    Patch(
        _SCHEDULER + "on_idle",
        "around",
        "scheduler:around_on_idle",
        ("self",),
        does="Replays next samples of known states before anyone asks for them.",
        why="An idle scheduler replays next samples ahead before it goes to sleep.",
        breaks="Nothing is ever replayed ahead.",
        upstream=(LOOP,),
    ),
    Patch(
        _SCHEDULER + "run_batch",
        "before",
        "scheduler:before_run_batch",
        ("self", "batch"),
        does="Counts the batch, and puts what distinct samples may still draw into its sampling info.",
        why="The sampler learns what distinct samples have left, and `/hive/stats` how full batches are.",
        breaks="Distinct samples can repeat.",
        upstream=(BEFORE_FORWARD, SAMPLER_DATA),
    ),
    Patch(
        "sglang.srt.model_executor.model_runner.ModelRunner.forward",
        "around",
        "model_runner:around_forward",
        ("self", "forward_batch"),
        does=(
            "Computes extends of few tokens as rows of a decode step (`--hive-decode-rows`). With "
            "`--hive-kv-segments`: copies KV to where it is placed, computes virtual rows, and moves the positions of "
            "what follows the messages of a choreography."
        ),
        why="A decode step is one CUDA graph. Stored KV is placed behind any context, and corrected there.",
        breaks=(
            "Short extends take several times as long. Placed segments hold KV of other requests, and choreographies "
            "are answered with nonsense."
        ),
        upstream=(PLACED_KV,),
        only="0.5.17",
    ),
    Patch(
        _SCHEDULER + "is_disable_overlap_for_batch",
        "after",
        "scheduler:after_is_disable_overlap_for_batch",
        ("self", "batch", "last_batch"),
        does="Has the last batch's result processed first where such a sample is in it.",
        why=(
            "A distinct sample that follows an earlier one must know its last token before it draws the next."
        ),
        breaks="Distinct samples can repeat under overlap scheduling.",
        upstream=(BEFORE_FORWARD,),
    ),
    Patch(
        _SCHEDULER + "abort_request",
        "around",
        "scheduler:around_abort_request",
        ("self", "recv_req"),
        does="Aborts requests in replay, too, and sees off those dropped from the queue.",
        why="Requests that replay are in no queue of the engine.",
        breaks="They cannot be aborted, and an aborted distinct sample blocks its state.",
        upstream=(HELD, ENDS),
    ),
    Patch(
        _SCHEDULER + "_abort_on_waiting_timeout",
        "around",
        "scheduler:around_abort_on_waiting_timeout",
        ("self",),
        does="Sees off requests that were dropped from the queue.",
        why="A request that waited too long leaves the books.",
        breaks="A distinct sample that timed out in the queue blocks its state.",
        upstream=(ENDS,),
        only="0.5.17",
    ),
    Patch(
        _SCHEDULER + "get_new_batch_prefill",
        "around",
        "scheduler:around_get_new_batch_prefill",
        ("self", "running_batch"),
        does=(
            "Moves replayed requests with resident KV from the queue into the decode batch, and the decode batch into "
            "a prefill of few tokens."
        ),
        why=(
            "A replayed request whose KV is resident joins the decode batch without a prefill, and a prefill of few "
            "tokens holds up nobody."
        ),
        breaks="Every replayed request pays a prefill pass, and every prefill stops the requests that are decoded.",
        upstream=(JOIN,),
    ),
    Patch(
        _SCHEDULER + "flush_cache",
        "after",
        "scheduler:after_flush_cache",
        ("self",),
        does="Empties the Logits Cache after a flush that succeeded.",
        why="A flush empties the Logits Cache, too.",
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
        does="Answers messages whose name begins with `hive:`, and passes all others on.",
        why="The one typed IPC message that carries JSON both ways carries Hive's control plane.",
        breaks="/hive/* fails.",
        upstream=(CONTROL,),
    ),
    *(
        Patch(
            _WEIGHTS + f"update_weights_from_{source}",
            "after",
            "scheduler:after_update_weights",
            ("self", "recv_req"),
            does="Empties the Logits Cache.",
            why="New weights make every kept distribution wrong.",
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
        does="Starts the copy of the recorded rows on the stream of the drawn tokens.",
        why="On a GPU recorded rows travel with the drawn tokens, and nothing waits for them.",
        breaks="Recording stalls the overlap scheduler.",
        upstream=(SAMPLER_DATA,),
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.prepare_for_extend",
        "after",
        "schedule_batch:after_prepare_for_extend",
        ("self",),
        does="Bounds `cached_tokens` of replayed requests by the length of their prompt.",
        why="A replayed request's cached tokens stay within its prompt.",
        breaks="cached_tokens can exceed prompt_tokens.",
        upstream=(CACHED_TOKENS,),
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "replace",
        "schedule_batch:cumulate_penalty_output_tokens",
        ("self",),
        does="Shows penalties the token at a fixed place of each request, not the last one known.",
        why="Which tokens penalties count depends on what else ran in between.",
        breaks="Under penalties, outputs depend on other requests.",
        upstream=(PENALTIES,),
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        "after",
        "sampling_batch_info:after_from_schedule_batch",
        ("cls", "batch"),
        does=(
            "Fills the seeds, shows penalties what was generated before, and tells the sampler which "
            "steps it needs."
        ),
        why="Every request has a seed, and penalties know what was generated before the batch.",
        breaks="The sampler has no seeds and every request fails.",
        upstream=(SEEDS, PENALTIES),
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward",
        "after",
        "sampling_batch_info:after_copy_for_forward",
        ("self",),
        does="Hands what distinct samples may still draw on to the copy, once.",
        why="What distinct samples may still draw reaches the sampler.",
        breaks="Distinct samples can repeat under overlap scheduling.",
        upstream=(SAMPLER_DATA,),
    ),
)


def patches_of(release: str) -> tuple[Patch, ...]:
    """The hooks that a release of SGLang needs."""
    return tuple(patch for patch in PATCHES if patch.only in (None, release))
