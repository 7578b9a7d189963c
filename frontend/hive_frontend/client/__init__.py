"""Language model clients: the contract and the one for HTTP servers."""

from hive_frontend.client.base import Client, Completion, Request, Sampling
from hive_frontend.client.http import HttpClient

__all__ = ["Client", "Completion", "HttpClient", "Request", "Sampling"]
