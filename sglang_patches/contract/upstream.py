"""Changes in SGLang that would make hooks unnecessary, and what Hive relies on besides its hooks.

:mod:`sglang_patches.contract.describe` writes both to ``docs/upstream.md``, together with the table of hooks.
``tests/sglang_patches/test_contract.py`` looks up every symbol named here in the installed SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_patches.contract.releases import order


@dataclass(frozen=True)
class Change:
    """A change in SGLang that would make hooks unnecessary."""

    name: str
    what: str


PINNING = Change(
    "pinned memory only where available",
    "`lora/` and `constrained/xgrammar_backend.py` pin host memory only if `is_pin_memory_available()` is "
    "true, as other code does.",
)
LORA_BATCHES = Change(
    "adapters of a step only when they change",
    "`ChunkedSgmvLoRABackend.prepare_lora_batch` skips the copies for a decode graph whose rows have the same "
    "adapters as at the step before.",
)
NEW_GRAMMARS = Change(
    "one compilation per new grammar",
    "`get_cached_or_future_value` returns the future of a compilation in progress, and `get_ready_grammar_requests` "
    "waits for futures instead of napping.",
)
CPU_GRAMMARS = Change(
    "grammars on a CPU",
    "For logits on a CPU, `apply_vocab_mask` calls `xgrammar.apply_token_bitmask_inplace`, which has a CPU "
    "kernel.",
)
CPU_SAMPLER = Change(
    "keep the chosen sampler",
    "`_handle_cpu_backends` sets `sampling_backend` only if no flag did, as it does with `attention_backend`.",
)
SECRETS = Change(
    "redacted secrets",
    "The `repr` of `ServerArgs` and `/server_info` contain no keys or passwords.",
)
HTTP_PLUGINS = Change(
    "HTTP for plugins",
    "Before it serves, every HTTP worker passes its app to plugins, which add routes and middleware.",
)
ANSWERS = Change(
    "requests and responses",
    "On every endpoint, plugins see each request before it is tokenized and may reject it, and see its "
    "`meta_info` before the response is sent.",
)
SAMPLES = Change(
    "numbered samples",
    "With `n` > 1, each request to the scheduler carries its sample number and a seed derived from it.",
)
COMPLETION_META = Change(
    "`meta_info` of completions",
    "`/v1/completions` returns `meta_info` if `return_meta_info` is set, as chat completions do.",
)
STREAMED_LOGPROBS = Change(
    "logprobs of multi-token chunks",
    "`_process_streaming_logprobs` passes `use_token_index=True`, so that each token of a chunk has its own "
    "alternatives.",
)
DEFAULT_CACHE = Change(
    "default cache from plugins",
    "A plugin chooses the default radix cache. `register_radix_cache_backend` only names a cache: it must "
    "then build every other kind of cache, too, and the operator cannot choose another one.",
)
CRASHES = Change(
    "cause of a crash",
    "A server that loses a process exits with a distinct status, and its last line names the process and the "
    "error.",
)
QUEUE_ORDER = Change(
    "queue order",
    "Plugins register a sort key for the waiting queue, as a value of `--schedule-policy`.",
)
SCHEDULER_START = Change(
    "scheduler start",
    "A callback runs when a scheduler is ready. An error in it stops the start.",
)
ADMISSION = Change(
    "before queueing",
    "A callback before a validated request is queued. It may append output tokens, finish the request or hold"
    " it back.",
)
HELD = Change(
    "held requests",
    "A queue for requests that a plugin holds back. Idle checks, aborts and timeouts include it.",
)
ENDS = Change(
    "end of every request",
    "One callback for every way a request ends: finished, rejected, dropped from the queue, aborted, timed "
    "out or given up.",
)
LOOP = Change(
    "scheduler loop",
    "A callback in each scheduler loop, idle or not. It returns whether it needs another loop soon.",
)
RESULTS = Change(
    "batch results",
    "Callbacks before and after the tokens of a batch are appended, with the requests that received one.",
)
BEFORE_FORWARD = Change(
    "before a forward pass",
    "A callback with the batch before its forward pass. It may request the result of the last batch first.",
)
PLACED_KV = Change(
    "placed KV",
    "A callback with each batch on the stream of its forward pass. It may copy KV, change positions, and "
    "compute rows whose KV already has slots.",
)
JOIN = Change(
    "joining the decode batch",
    "A public way to add a request to the decode batch if all its KV is resident. Disaggregation has one.",
)
FLUSHES = Change(
    "flushes and weight updates",
    "A callback after every flush and every weight update.",
)
CONTROL = Change(
    "control messages",
    "A typed message for plugins that carries JSON to every scheduler and back, and a field for their "
    "counters in `internal_states`.",
)
SAMPLER_DATA = Change(
    "sampler data",
    "Fields for custom samplers on `SamplingBatchInfo` and `LogitsProcessorOutput`. They reach the forward "
    "pass, and are copied to the host with the drawn tokens.",
)
CACHED_TOKENS = Change(
    "cached tokens of the prompt",
    "`cached_tokens` excludes output tokens that a request already has when it is queued.",
)
FORCED_TOKENS = Change(
    "dictated ends of answers",
    "Where a grammar leaves one token at every position up to the end, a request ends without drawing them.",
)
PENALTIES = Change(
    "penalties by position",
    "Penalties depend only on a request's own tokens, also after it was retracted.",
)
SEEDS = Change(
    "seeds for every sampler",
    "`sampling_seed` is filled with and without `--enable-deterministic-inference`.",
)


@dataclass(frozen=True)
class Seam:
    """A part of SGLang that Hive relies on, besides the hooked functions."""

    name: str
    where: str
    """Hive's module that uses it."""
    symbols: tuple[str, ...]
    """Dotted paths under ``sglang``."""
    does: str
    upstream: str
    """The change in SGLang that would make it a public API, or unnecessary."""
    since: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further symbols, by the first release of SGLang in which Hive uses them; those of a later one replace them."""

    def symbols_of(self, release: str) -> tuple[str, ...]:
        """Return the symbols that Hive uses in a release of SGLang."""
        begun = [first for first in self.since if order(first) <= order(release)]
        return (*self.symbols, *(self.since[max(begun, key=order)] if begun else ()))


_RADIX = "srt.mem_cache.radix_cache.RadixCache."
_HIRADIX = "srt.mem_cache.hiradix_cache.HiRadixCache."
_SAMPLER = "srt.layers.sampler.Sampler."
_SCHEDULER = "srt.managers.scheduler.Scheduler."
_BATCH = "srt.managers.schedule_batch.ScheduleBatch."
_CHAT = "srt.entrypoints.openai.serving_chat.OpenAIServingChat."

SEAMS: tuple[Seam, ...] = (
    Seam(
        "plugin entry point",
        "sglang_patches.plugin",
        ("srt.plugins.load_plugins", "srt.plugins.hook_registry.HookRegistry._patched"),
        "SGLang calls `activate` in the launching process and in every scheduler. It registers the hooks and "
        "the sampler.",
        "A plugin that fails, or a hook that does not apply, stops the start. SGLang only logs both, so Hive "
        "reads the registry's private `_patched`.",
    ),
    Seam(
        "CPU platform",
        "sglang_patches.cpu_platform",
        (
            "srt.platforms.cpu.CpuDeviceMixin",
            "srt.platforms.device_mixin.PlatformEnum.OOT",
            "srt.platforms.interface.SRTPlatform",
        ),
        "Registers a platform that uses the pure-torch code path of the layers with `torch_native` attention."
        " SGLang then serves without a GPU and without `sgl_kernel`.",
        "SGLang falls back to such a platform on a machine without both.",
    ),
    Seam(
        "sampler backend",
        "sglang_patches.forward.sampler",
        (
            "srt.layers.sampler.register_sampler_backend",
            _SAMPLER + "_preprocess_logits",
            _SAMPLER + "_sync_token_ids_across_tp",
        ),
        "`--sampling-backend hive` draws with a separate seed for each request, independent of the rest of "
        "the batch, and keeps the rows for the Logits Cache.",
        "The registration is a public API. The steps around a draw, which every sampler needs, are private.",
        {
            "0.5.17": (
                _SAMPLER + "_compute_sampling_mask_from_probs",
                _SAMPLER + "_attach_sampling_mask_to_output",
                _SAMPLER + "_attach_greedy_sampling_mask_to_output",
            ),
            "0.5.23": (
                "srt.layers.sampler._SamplingMaskCapture",
                _SAMPLER + "_build_sampling_mask_output",
                _SAMPLER + "_build_greedy_sampling_mask_output",
            ),
        },
    ),
    Seam(
        "radix caches",
        "sglang_patches.cache.radix_cache",
        tuple(
            _RADIX + name
            for name in (
                "reset",
                "evict",
                "_split_node",
                "_delete_leaf",
                "_update_leaf_status",
                "_inc_hit_count",
            )
        ),
        "Subclasses of both caches record which requests computed and used each node, and evict by a policy "
        "of `hive.server.eviction`.",
        "Tree callbacks (node stored, split, used, evicted), and an eviction strategy that is told how many "
        "tokens are needed and chooses among the leaves.",
        {
            "0.5.17": (
                *(
                    _RADIX + name
                    for name in ("cache_unfinished_req", "cache_finished_req", "_record_remove_event")
                ),
                *(
                    _HIRADIX + name
                    for name in (
                        "evict_host",
                        "_evict_write_back",
                        "_evict_backuped",
                        "_evict_regular",
                        "_detach_backuped",
                        "_drop_subtree_no_host",
                    )
                ),
            ),
            "0.5.23": (
                *(_RADIX + name for name in ("checkpoint", "on_release", "lock", "prefix_device_indices")),
                "srt.mem_cache.events.KVCacheEventRecorder.record_remove",
            ),
        },
    ),
    Seam(
        "routes and request middleware",
        "sglang_patches.http.request_middleware",
        ("srt.entrypoints.http_server.app",),
        "SGLang's app gets the `/hive` routes, the innermost middleware and an exception handler.",
        f"The change *{HTTP_PLUGINS.name}*, and checks in SGLang itself: one bad request must not end a server.",
    ),
    Seam(
        "request tag and results",
        "sglang_patches.requests.request_state",
        ("srt.sampling.sampling_params.SamplingParams", "srt.managers.schedule_batch.Req"),
        "`custom_params.hive` carries a request's tag to the scheduler. `Req.customized_info` carries Hive's "
        "results back.",
        "Both work, but are not documented.",
    ),
    Seam(
        "control plane",
        "sglang_patches.hooks.http_server",
        (
            "srt.managers.io_struct.DumperControlReqInput",
            "srt.managers.io_struct.DumperControlReqOutput",
            "srt.managers.tokenizer_manager.TokenizerManager.dumper_control",
            "srt.managers.tokenizer_manager.TokenizerManager._dispatch_to_scheduler",
        ),
        "Routes send control messages to the schedulers, as messages of SGLang's dumper whose names begin "
        "with `hive:`.",
        f"The change *{CONTROL.name}*.",
    ),
    Seam(
        "ends of chats",
        "sglang_patches.http.chat_ends",
        ("srt.function_call.function_call_parser.FunctionCallParser",),
        "A chat that ends in a tool call is reported to the scheduler, as a control message without a response. The "
        "parser of `OpenAIServingChat.tool_call_parser` finds the call in the text.",
        f"The change *{ANSWERS.name}*.",
    ),
    Seam(
        "decode join",
        "sglang_patches.scheduling.decode_join",
        (
            *(
                _BATCH + name
                for name in ("init_new", "prepare_for_prebuilt", "process_prebuilt", "merge_batch")
            ),
            "srt.managers.schedule_batch.ReqKvInfo",
            _SCHEDULER + "get_num_allocatable_reqs",
        ),
        "A replayed request with resident KV enters the decode batch as a request enters a decode server "
        "under disaggregation. A prefill of few tokens is merged with the running batch as under "
        "`--enable-mixed-chunk`.",
        f"The change *{JOIN.name}*.",
        {
            "0.5.17": (
                _SCHEDULER + "_can_schedule_lora_req",
                _BATCH + "mix_with_running",
                _BATCH + "check_decode_mem",
                "srt.managers.schedule_batch.NextBatchPlan",
            ),
            "0.5.23": (_SCHEDULER + "can_schedule_lora_req",),
        },
    ),
    Seam(
        "placed KV",
        "sglang_patches.cache.segmented_cache",
        (),
        "Segments are matched and placed like prefixes in host memory: `match_prefix` reports their length, "
        "and `init_load_back` loads them once a request is admitted. Virtual rows are rows of an extend batch"
        " whose slots already exist. RoPE parameters are read from the modules next to each attention layer.",
        f"The change *{PLACED_KV.name}*.",
        {
            "0.5.17": (
                "srt.mem_cache.radix_cache.RadixCache.match_prefix",
                "srt.mem_cache.radix_cache.RadixCache.cache_finished_req",
                "srt.mem_cache.radix_cache.RadixCache.cache_unfinished_req",
                "srt.mem_cache.base_prefix_cache.InitLoadBackParams",
                "srt.mem_cache.common.evict_from_tree_cache",
                "srt.mem_cache.memory_pool.MHATokenToKVPool",
                "srt.managers.schedule_policy.PrefillAdder.add_one_req",
                "srt.layers.radix_attention.RadixAttention",
                "srt.model_executor.forward_batch_info.ForwardBatch",
                "srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner",
            ),
            "0.5.23": (),
        },
    ),
    Seam(
        "rendered prompts",
        "sglang_patches.http.chat_template",
        (_CHAT + "_convert_to_internal_request",),
        "`POST /hive/render` gets the prompt that the chat endpoint would send to the engine.",
        "A route or a method that returns the rendered text with its tokens.",
    ),
    Seam(
        "samples of one prompt",
        "sglang_patches.http.samples",
        tuple(
            "srt.managers.tokenizer_manager." + name
            for name in (
                "ReqState.get_text",
                "TokenizerManager._init_req_state",
                "TokenizerManager._validate_and_resolve_lora",
                "TokenizerManager._tokenize_one_request",
                "TokenizerManager._send_batch_request",
                "TokenizerManager._set_default_priority",
                "TokenizerManager._handle_abort_req",
                "TokenizerManager._handle_abort_finish_reason",
                "TokenizerManager.abort_request",
            )
        ),
        "`POST /hive/generate` tokenizes a prompt once, sends all samples to the scheduler in one message, "
        "and streams each sample as it finishes. The engine's own batches tokenize, send and wait for each "
        "sample separately.",
        "`generate_request` takes one prompt with a list of seeds and parameters, and yields each output as "
        "it finishes.",
    ),
    Seam(
        "launcher",
        "hive.launch_server",
        (
            "launch_server.run_server",
            "srt.server_args.prepare_server_args",
            "srt.server_args.ServerArgs.add_cli_args",
            "srt.utils.kill_process_tree",
        ),
        "Accepts `--hive-*` flags in addition to SGLang's, and passes them to the schedulers in an "
        "environment variable.",
        "Plugins may add flags and read them from `ServerArgs`.",
    ),
)
