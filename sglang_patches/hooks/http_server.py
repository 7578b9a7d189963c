"""Hook on ``_setup_and_run_http_server``: the ``/hive`` routes and the request middleware.

The routes are ordinary routes of SGLang's app, so ``--api-key`` protects them like ``/generate``: a program that may
generate may also register its agents and end its sessions.
"""

from __future__ import annotations

from typing import Any

from hive.server.access import Access
from hive.server.flags.server_args import HiveServerArgs
from hive.server.host_memory import freeze_objects
from hive.server.request_checks import Limits
from sglang_patches.contract.releases import current
from sglang_patches.http import choreography, hive_routes, live_routes, samples
from sglang_patches.http.bounded_headers import bound_headers
from sglang_patches.http.chat_ends import ChatEnds
from sglang_patches.http.declared_segments import DeclaredSegments
from sglang_patches.http.request_middleware import install


def before_setup_and_run_http_server(
    server_args: Any, tokenizer_manager: Any, *_args: Any, **_kwargs: Any
) -> None:
    """Add the routes and the request middleware before the server listens."""
    from sglang.srt.entrypoints.http_server import app

    tokenizer_manager.hive_limits = limits_of(tokenizer_manager)
    tokenizer_manager.hive_chat_ends = ChatEnds(tokenizer_manager)
    access = access_of(server_args)
    args = HiveServerArgs.from_environment()
    tokenizer_manager.hive_segments = DeclaredSegments(tokenizer_manager, args) if args.kv_segments else None
    messages = choreography.Choreography(tokenizer_manager) if args.kv_segments else None
    for routes in (
        hive_routes.router(tokenizer_manager, access, messages),
        choreography.router(messages),
        samples.router(tokenizer_manager, access),
        live_routes.router(tokenizer_manager),
    ):
        # Not `include_router`: newer versions of FastAPI wrap the routes, but SGLang's key check reads each route's
        # level.
        app.router.routes.extend(routes.routes)
    install(app, tokenizer_manager.hive_limits, access)
    bound_headers(args.max_header_bytes)
    freeze_objects()


def limits_of(tokenizer_manager: Any) -> Limits:
    """Return what the served model and the operator allow in a request."""
    config, args = tokenizer_manager.model_config, HiveServerArgs.from_environment()
    return Limits(
        vocab_size=config.vocab_size,
        context_length=config.context_len,
        max_header_bytes=args.max_header_bytes,
        max_body_bytes=args.max_body_bytes,
        unset_params=current().unset_params,
        kv_segments=args.kv_segments,
        media_files=args.allow_media_files,
    )


def access_of(server_args: Any) -> Access:
    """Return who may use the server."""
    args = HiveServerArgs.from_environment()
    return Access(
        # SGLang treats an empty key as no key.
        api_key=server_args.api_key or None,
        admin_api_key=server_args.admin_api_key or None,
        host=server_args.host,
        origins=args.origins,
        pickle_routes=args.allow_pickle_routes,
    )
