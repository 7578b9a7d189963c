"""The one table of hooks: what Hive changes in SGLang, where, why, and what breaks if it moves.

SGLang is extended through its plugin API alone.  A hook names its upstream symbol and the leading parameters
it relies on; ``tests/sglang_patches/test_contract.py`` checks both against the installed SGLang, and
:func:`sglang_patches.plugin.verify` refuses to serve when one of them did not apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SUPPORTED_SGLANG = "0.5.17"
"""The exact version that the table below was written against."""

Group = Literal["cpu", "hive"]


@dataclass(frozen=True)
class Patch:
    """One hook on one upstream symbol."""

    target: str
    """Dotted path of the upstream function or method."""
    kind: Literal["before", "after", "around", "replace"]
    hook: str
    """``module:function`` inside :mod:`sglang_patches`."""
    parameters: tuple[str, ...]
    """Names of the upstream parameters the hook relies on, in order."""
    why: str
    breaks: str
    """What a user would see if the symbol moved and the hook were lost."""
    group: Group = "hive"
    """``cpu``: applied wherever the CPU platform is active; ``hive``: only under ``hive.launch_server``."""


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
        "Pinned memory needs an NVIDIA driver.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammarBackend.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask",
        ("logits", "vocab_mask"),
        "Upstream raises for devices that are not CUDA-like.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
    Patch(
        _XGRAMMAR + "XGrammarGrammar.apply_vocab_mask",
        "replace",
        "xgrammar_backend:apply_vocab_mask_of_grammar",
        ("self", "logits", "vocab_mask"),
        "Upstream raises for devices that are not CUDA-like.",
        "Grammar-constrained requests crash the scheduler on a CPU.",
        "cpu",
    ),
    Patch(
        _LORA + "init_state",
        "around",
        "lora_manager:around_init_state",
        ("self",),
        "Pinned memory needs an NVIDIA driver.",
        "A server with LoRA adapters does not start on a CPU.",
        "cpu",
    ),
    Patch(
        _LORA + "prepare_lora_batch",
        "around",
        "lora_manager:around_prepare_lora_batch",
        ("self", "forward_batch"),
        "Pinned memory needs an NVIDIA driver.",
        "The first request to a server with LoRA adapters kills it on a CPU.",
        "cpu",
    ),
    Patch(
        "sglang.srt.server_args.ServerArgs._handle_cpu_backends",
        "around",
        "server_args:around_handle_cpu_backends",
        ("self",),
        "Upstream overrides --sampling-backend on a CPU.",
        "Hive's sampler and the Logits Cache do not run on a CPU.",
    ),
    Patch(
        "sglang.srt.entrypoints.http_server._setup_and_run_http_server",
        "before",
        "http_server:before_setup_and_run_http_server",
        ("server_args", "tokenizer_manager"),
        "The /hive routes, and the door that checks requests.",
        "/hive/* answers 404, and a bad request can kill the scheduler.",
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager.generate_request",
        "around",
        "tokenizer_manager:around_generate_request",
        ("self", "obj", "request"),
        "Answers say what was done, in meta_info.hive.",
        "meta_info.hive is missing.",
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager._init_child_req_state",
        "around",
        "tokenizer_manager:around_init_child_req_state",
        ("self", "logical_rid", "obj"),
        "The samples of a request with n > 1 are numbered.",
        "n > 1 with a seed gives n equal outputs.",
    ),
    Patch(
        _MANAGERS + "tokenizer_manager.TokenizerManager._send_one_request",
        "before",
        "tokenizer_manager:before_send_one_request",
        ("self", "tokenized_obj"),
        "Each sample of a request with n > 1 has a seed of its own.",
        "n > 1 with a seed gives n equal outputs.",
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_completions.OpenAIServingCompletion._build_completion_response",
        "after",
        "serving_completions:after_build_completion_response",
        ("self", "request", "ret", "created"),
        "Upstream drops meta_info on /v1/completions.",
        "/v1/completions does not say what was done.",
    ),
    Patch(
        "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat._process_logprobs_tokens",
        "around",
        "serving_chat:around_process_logprobs_tokens",
        ("self", "logprobs", "use_token_index"),
        "Upstream gives every token of a streamed chunk the first one's alternatives.",
        "Streamed chats show wrong top_logprobs for replayed tokens.",
    ),
    Patch(
        "sglang.srt.mem_cache.registry.default_radix_cache_factory",
        "around",
        "mem_cache_registry:around_default_radix_cache_factory",
        ("ctx",),
        "The radix cache knows agents, and evicts as --hive-eviction says.",
        "KV is evicted by SGLang's LRU, and agents have no residency.",
    ),
    Patch(
        _MANAGERS + "schedule_policy.SchedulePolicy.calc_priority",
        "after",
        "schedule_policy:after_calc_priority",
        ("self", "waiting_queue", "running_batch"),
        "The order of the waiting queue by contribution (--hive-schedule contribution).",
        "--hive-schedule contribution does nothing.",
    ),
    Patch(
        _SCHEDULER + "__init__",
        "after",
        "scheduler:after_init",
        ("self", "server_args"),
        "Hive's state in the scheduler process, and the check that no hook was lost there.",
        "The scheduler fails at the first request.",
    ),
    Patch(
        _SCHEDULER + "_add_request_to_queue",
        "around",
        "scheduler:around_add_request_to_queue",
        ("self", "req", "is_retracted"),
        "Replay: the request is validated and clamped, but not queued yet.",
        "The Logits Cache never serves a token, and agents have no counts.",
    ),
    Patch(
        _SCHEDULER + "process_batch_result",
        "around",
        "scheduler:around_process_batch_result",
        ("self", "batch", "result"),
        "Recording: rows are matched to requests as their outputs grow.",
        "The Logits Cache stays empty, and agents have no counts.",
    ),
    Patch(
        _SCHEDULER + "get_next_batch_to_run",
        "around",
        "scheduler:around_get_next_batch_to_run",
        ("self", "running_batch", "last_batch"),
        "A long replay is cut into slices, one for each loop.",
        "Requests with more than a slice to replay are never answered.",
    ),
    Patch(
        _SCHEDULER + "is_fully_idle",
        "after",
        "scheduler:after_is_fully_idle",
        ("self", "for_health_check"),
        "A request that replays, or is held, is as unfinished as one in the queue.",
        "A long replay pauses for a second between slices.",
    ),
    Patch(
        _SCHEDULER + "on_idle",
        "around",
        "scheduler:around_on_idle",
        ("self",),
        "An idle scheduler replays next samples ahead before it goes to sleep.",
        "Nothing is ever replayed ahead.",
    ),
    Patch(
        _SCHEDULER + "run_batch",
        "before",
        "scheduler:before_run_batch",
        ("self", "batch"),
        "The sampler learns what distinct samples have left.",
        "Distinct samples can repeat.",
    ),
    Patch(
        _SCHEDULER + "is_disable_overlap_for_batch",
        "after",
        "scheduler:after_is_disable_overlap_for_batch",
        ("self", "batch", "last_batch"),
        "A distinct sample that follows an earlier one must know its last token before it draws the next.",
        "Distinct samples can repeat under overlap scheduling.",
    ),
    Patch(
        _SCHEDULER + "abort_request",
        "around",
        "scheduler:around_abort_request",
        ("self", "recv_req"),
        "Requests that replay, or are held, are in no queue of the engine.",
        "They cannot be aborted, and an aborted distinct sample blocks its state.",
    ),
    Patch(
        _SCHEDULER + "_abort_on_waiting_timeout",
        "around",
        "scheduler:around_abort_on_waiting_timeout",
        ("self",),
        "A request that waited too long leaves the books.",
        "A distinct sample that timed out in the queue blocks its state.",
    ),
    Patch(
        _SCHEDULER + "get_new_batch_prefill",
        "around",
        "decode_join:around_get_new_batch_prefill",
        ("self", "running_batch"),
        "A replayed request whose KV is resident joins the decode batch without a prefill.",
        "Every replayed request pays a prefill pass.",
    ),
    Patch(
        _SCHEDULER + "flush_cache",
        "after",
        "scheduler:after_flush_cache",
        ("self",),
        "A flush empties the Logits Cache, too.",
        "/flush_cache leaves the Logits Cache warm.",
    ),
    Patch(
        _SCHEDULER + "get_internal_state",
        "after",
        "scheduler:after_get_internal_state",
        ("self", "recv_req"),
        "/server_info shows Hive's counters.",
        "Hive's counters are missing from /server_info.",
    ),
    Patch(
        _SCHEDULER + "handle_dumper_control",
        "around",
        "scheduler:around_handle_dumper_control",
        ("self", "recv_req"),
        "The one typed IPC message that carries JSON both ways carries Hive's control plane.",
        "/hive/* fails.",
    ),
    *(
        Patch(
            _WEIGHTS + f"update_weights_from_{source}",
            "after",
            "scheduler:after_update_weights",
            ("self", "recv_req"),
            "New weights make every kept distribution wrong.",
            "Replay serves tokens of the old weights.",
        )
        for source in ("disk", "distributed", "tensor", "ipc")
    ),
    Patch(
        _MANAGERS + "utils.GenerationBatchResult.copy_to_cpu",
        "before",
        "generation_batch_result:before_copy_to_cpu",
        ("self",),
        "On a GPU recorded rows travel with the drawn tokens, and nothing waits for them.",
        "Recording stalls the overlap scheduler.",
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.prepare_for_extend",
        "after",
        "schedule_batch:after_prepare_for_extend",
        ("self",),
        "A replayed request's cached tokens stay within its prompt.",
        "cached_tokens can exceed prompt_tokens.",
    ),
    Patch(
        _MANAGERS + "schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
        "replace",
        "schedule_batch:cumulate_penalty_output_tokens",
        ("self",),
        "Which tokens penalties count depends on what else ran in between.",
        "Under penalties, outputs depend on other requests.",
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch",
        "after",
        "sampling_batch_info:after_from_schedule_batch",
        ("cls", "batch"),
        "Every request has a seed, and penalties know what was generated before the batch.",
        "The sampler has no seeds and every request fails.",
    ),
    Patch(
        "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.copy_for_forward",
        "after",
        "sampling_batch_info:after_copy_for_forward",
        ("self",),
        "What distinct samples may still draw reaches the sampler.",
        "Distinct samples can repeat under overlap scheduling.",
    ),
)
