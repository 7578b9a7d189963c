"""The span of a model call, with the names of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hive_frontend import telemetry
from hive_frontend.client.contract import Client, Request
from hive_frontend.client.reply import Reply


def request_span(client: Client, request: Request) -> AbstractContextManager[telemetry.Span]:
    """Open the span of a call of `client`."""
    sampling = request.sampling
    model = client.model if request.model is None else request.model
    return telemetry.span(
        "chat" if request.prompt is None else "text_completion",
        model,
        {
            "gen_ai.provider.name": client.provider,
            "gen_ai.request.model": model,
            "gen_ai.agent.name": request.agent,
            "gen_ai.conversation.id": request.session,
            "gen_ai.output.type": "text" if sampling.json_schema is None else "json",
            "gen_ai.request.seed": request.seed,
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": sampling.top_k,
            "gen_ai.request.stop_sequences": sampling.stop or None,
            "hive.name": request.name,
            "hive.state": request.state,
            "hive.sample": request.sample,
        },
    )


def set_answer(span: telemetry.Span, client: Client, reply: Reply) -> None:
    """Set what the answer of a call tells; only now is the provider certain."""
    span.set(
        {
            "gen_ai.provider.name": client.provider,
            "gen_ai.response.finish_reasons": None if reply.finish_reason is None else [reply.finish_reason],
            # 0 is a server that does not report them.
            "gen_ai.usage.input_tokens": reply.prompt_tokens or None,
            "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens or None,
            "gen_ai.usage.output_tokens": reply.tokens_generated + reply.tokens_replayed,
            "hive.tokens_generated": reply.tokens_generated,
            "hive.tokens_replayed": reply.tokens_replayed,
        }
    )
