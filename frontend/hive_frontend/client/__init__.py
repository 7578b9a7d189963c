"""Language model clients: the contract and the one for HTTP servers."""

from hive_frontend.client.base import (
    CallTimeout,
    Client,
    Completion,
    OnText,
    Request,
    Sampling,
    sample_seed,
)
from hive_frontend.client.http import HttpClient

__all__ = [
    "CallTimeout",
    "Client",
    "Completion",
    "HttpClient",
    "OnText",
    "Request",
    "Sampling",
    "sample_seed",
]
