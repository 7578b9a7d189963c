"""Checks of requests before they reach the engine.

SGLang 0.5.17 checks little: a single request with ``top_k`` 2**31, or with ``top_logprobs_num`` above the vocabulary,
ends the scheduler for all clients, and ``n`` of a million keeps it busy for hours.  ``python -m bench.bad_requests``
shows what each bad request does.  The checks here are strict about fields that reach the engine's tensors, loops and
typed messages.  Fields that SGLang's own models check well are left to them, and so are unknown fields of the body,
which SGLang ignores.

Every function takes decoded JSON and raises :class:`RequestError` with the first invalid field.
"""

from hive.server.request_checks.choreography import check_decode as check_decode
from hive.server.request_checks.choreography import check_prefill as check_prefill
from hive.server.request_checks.engine import check_generate as check_generate
from hive.server.request_checks.engine import check_request_object as check_request_object
from hive.server.request_checks.engine import check_vertex as check_vertex
from hive.server.request_checks.limits import Limits as Limits
from hive.server.request_checks.openai import check_chat as check_chat
from hive.server.request_checks.openai import check_completion as check_completion
from hive.server.request_checks.openai import check_render as check_render
from hive.server.request_checks.samples import check_samples as check_samples
from hive.server.request_checks.samples import ids_of as ids_of
