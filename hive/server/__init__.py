"""The engine-free core of the server: caching, eviction, and the checks of requests.  Imports only NumPy and torch."""
