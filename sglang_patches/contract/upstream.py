"""What SGLang would have to offer so that Hive need not hook it, and what Hive relies on beside its hooks.

:mod:`sglang_patches.contract.describe` makes the tables of ``docs/upstream.md`` of this and of the table of hooks, and
``tests/sglang_patches/test_contract.py`` finds every symbol named here in the installed SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """A change in SGLang that would make hooks unnecessary."""

    name: str
    what: str


PINNING = Change(
    "pin where it can be done",
    "Host memory is pinned only where `is_pin_memory_available()` says so, in `lora/` and in "
    "`constrained/xgrammar_backend.py` as it is elsewhere.",
)
CPU_GRAMMARS = Change(
    "grammars on a CPU",
    "`apply_vocab_mask` calls `xgrammar.apply_token_bitmask_inplace`, which has a CPU kernel, for logits on a CPU.",
)
CPU_SAMPLER = Change(
    "the sampler that was asked for",
    "`_handle_cpu_backends` sets `sampling_backend` only where no flag did, as it does with `attention_backend`.",
)
SECRETS = Change(
    "secrets stay secret",
    "`ServerArgs` shows no keys and passwords in its `repr`, and `/server_info` none.",
)
HTTP_PLUGINS = Change(
    "HTTP for plugins",
    "Plugins are given the app before it serves, in every HTTP worker, to add routes and middleware.",
)
ANSWERS = Change(
    "requests and answers",
    "Plugins see every request before it is tokenised, and may refuse it, and its `meta_info` before it is answered, "
    "whatever the endpoint.",
)
SAMPLES = Change(
    "numbered samples",
    "With `n` > 1, each request to the scheduler carries the number of its sample and a seed derived from it.",
)
COMPLETION_META = Change(
    "`meta_info` of completions",
    "`/v1/completions` returns `meta_info` where `return_meta_info` asks for it, as chat completions do.",
)
STREAMED_LOGPROBS = Change(
    "chunks of several tokens",
    "`_process_streaming_logprobs` passes `use_token_index=True`: each token of a chunk has alternatives of its own.",
)
DEFAULT_CACHE = Change(
    "a default cache by plugins",
    "A plugin may say which radix cache is built by default. `register_radix_cache_backend` gives caches names, but "
    "one that is chosen by its name has to build the other kinds, too, and the operator can choose no other.",
)
CRASHES = Change(
    "the cause of an end",
    "A server that loses a process ends with a status of its own, and a last line that names process and error.",
)
QUEUE_ORDER = Change(
    "order of the queue",
    "Plugins register a sort key for the waiting queue, as a value of `--schedule-policy`.",
)
SCHEDULER_START = Change(
    "a scheduler that starts",
    "A callback when a scheduler is ready; an error there ends the start.",
)
ADMISSION = Change(
    "before admission",
    "A callback before a validated request is queued, which may append output tokens, finish it or hold it back.",
)
HELD = Change(
    "requests held back",
    "A queue for requests that a plugin holds back, which idle checks, aborts and timeouts know.",
)
ENDS = Change(
    "every end of a request",
    "One callback for every end: finished, refused, dropped from the queue, aborted, timed out, given up.",
)
LOOP = Change(
    "each loop",
    "A callback in each loop of the scheduler, idle or not, which says whether it wants another one soon.",
)
RESULTS = Change(
    "results of a batch",
    "Callbacks before and after the tokens of a batch are appended, with the requests that got one.",
)
BEFORE_FORWARD = Change(
    "before a forward pass",
    "A callback with a batch before its forward pass, which may ask to have the last batch's result first.",
)
PLACED_KV = Change(
    "KV that is placed",
    "A callback with each batch on the stream of its forward pass, which may copy KV, change positions, and have rows "
    "computed whose KV has slots already.",
)
JOIN = Change(
    "joining the decode batch",
    "A public way into the decode batch for a request whose KV is all resident; disaggregation has one.",
)
FLUSHES = Change(
    "flushes and weights",
    "A callback after every flush and after every change of the weights.",
)
CONTROL = Change(
    "control messages",
    "A typed message for plugins that carries JSON to every scheduler and back, and a place for their counters in "
    "`internal_states`.",
)
SAMPLER_DATA = Change(
    "data of samplers",
    "Fields for custom samplers on `SamplingBatchInfo` and `LogitsProcessorOutput`, which reach the forward pass and "
    "travel to the host with the drawn tokens.",
)
CACHED_TOKENS = Change(
    "cached tokens of the prompt",
    "`cached_tokens` leaves out tokens that a request brings along as output.",
)
PENALTIES = Change(
    "penalties by position",
    "What penalties have counted depends on a request's own tokens alone, also after it was retracted.",
)
SEEDS = Change(
    "seeds for every sampler",
    "`sampling_seed` is filled whether or not the server runs with `--enable-deterministic-inference`.",
)


@dataclass(frozen=True)
class Seam:
    """Something of SGLang's, beside the hooked functions, that Hive relies on."""

    name: str
    where: str
    """The module of Hive's."""
    symbols: tuple[str, ...]
    """Dotted paths under ``sglang``."""
    does: str
    upstream: str
    """What would make it a matter of course, or unnecessary."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further symbols, by the one release of SGLang that Hive uses them in."""

    def symbols_of(self, release: str) -> tuple[str, ...]:
        """The symbols in a release of SGLang."""
        return (*self.symbols, *self.only.get(release, ()))


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
        "`sglang.srt.plugins` calls `activate` in the launching process and in every scheduler; it registers the hooks "
        "and the sampler.",
        "A plugin that fails, or a hook that does not apply, ends the start. SGLang only logs both; so Hive looks "
        "into the registry's private `_patched`.",
    ),
    Seam(
        "CPU platform",
        "sglang_patches.cpu_platform",
        (
            "srt.platforms.cpu.CpuDeviceMixin",
            "srt.platforms.device_mixin.PlatformEnum.OOT",
            "srt.platforms.interface.SRTPlatform",
        ),
        "`sglang.srt.platforms` activates a platform that takes the pure-torch path through the layers, with "
        "`torch_native` attention: SGLang serves without a GPU and without `sgl_kernel`.",
        "SGLang falls back to such a platform where there is neither.",
    ),
    Seam(
        "sampler backend",
        "sglang_patches.forward.sampler",
        (
            "srt.layers.sampler.register_sampler_backend",
            _SAMPLER + "_preprocess_logits",
            _SAMPLER + "_sync_token_ids_across_tp",
        ),
        "`--sampling-backend hive` draws with a seed of each request's own, whatever else is in the batch, and "
        "leaves the rows for the Logits Cache.",
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
        "Subclasses of both caches note who computed and used each node, and evict by a policy of "
        "`hive.server.eviction`.",
        "Callbacks of the tree (a node is stored, split, used, evicted), and an eviction strategy that is told how "
        "many tokens are wanted and chooses among the leaves.",
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
        "routes and the door",
        "sglang_patches.http.request_door",
        ("srt.entrypoints.http_server.app",),
        "The `/hive` routes, the innermost middleware and an exception handler are put into SGLang's app.",
        f"The change *{HTTP_PLUGINS.name}*, and checks of SGLang's own: one bad request should not end a server.",
    ),
    Seam(
        "the tag, and what was done",
        "sglang_patches.requests.request_state",
        ("srt.sampling.sampling_params.SamplingParams", "srt.managers.schedule_batch.Req"),
        "`custom_params.hive` takes a request's tag to the scheduler; `Req.customized_info` brings back what was done.",
        "Both do what is needed, and are not documented.",
    ),
    Seam(
        "control plane",
        "sglang_patches.hooks.http_server",
        (
            "srt.managers.io_struct.DumperControlReqInput",
            "srt.managers.io_struct.DumperControlReqOutput",
            "srt.managers.tokenizer_manager.TokenizerManager.dumper_control",
        ),
        "Routes ask the schedulers by messages that SGLang has for its dumper, with names that begin with `hive:`.",
        f"The change *{CONTROL.name}*.",
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
        "A replayed request with resident KV enters the way requests enter a decode server of a disaggregated pair; a "
        "prefill of few tokens takes in the running batch as under `--enable-mixed-chunk`.",
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
        "Segments are matched and placed as prefixes on the host are: `match_prefix` says how much there is, and "
        "`init_load_back` gets it once a request is admitted. Virtual rows are rows of an extend batch that name slots "
        "which exist already; RoPE is read off the modules beside each attention layer.",
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
        },
    ),
    Seam(
        "rendered prompts",
        "sglang_patches.http.chat_template",
        (_CHAT + "_convert_to_internal_request",),
        "`POST /hive/render` asks the chat endpoint for the prompt that it would send to the engine.",
        "A route, or a method, that returns the rendered text with its tokens.",
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
        "`POST /hive/generate` tokenises a prompt once, sends all samples to the scheduler in one message and reads "
        "each one's answers off its state, where the engine's own batches tokenise, send and wait one by one.",
        "`generate_request` takes one prompt with a list of seeds and parameters, and yields each answer as it ends.",
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
        "Takes `--hive-*` flags beside SGLang's and hands them to the schedulers in an environment variable.",
        "Plugins may add flags, and find them in `ServerArgs`.",
    ),
)
