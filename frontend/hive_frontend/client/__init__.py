"""Language model clients: the `Client` contract, and the client for HTTP servers."""

from hive_frontend.client.contract import (
    CallTimeout,
    Client,
    Completion,
    Corrector,
    MessageCall,
    OnText,
    Request,
    Sampling,
)
from hive_frontend.client.http.client import HttpClient
from hive_frontend.client.prices import Prices
from hive_frontend.client.text_messages import TextMessages
from hive_frontend.wire import SessionHint, sample_seed

__all__ = [
    "CallTimeout",
    "Client",
    "Completion",
    "Corrector",
    "HttpClient",
    "MessageCall",
    "OnText",
    "Prices",
    "Request",
    "Sampling",
    "SessionHint",
    "TextMessages",
    "sample_seed",
]
