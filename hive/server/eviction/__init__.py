"""Eviction policies: which KV leaves the device first, given the record of each node of the radix tree.

Engine-free: a node is anything with an ``id`` and a :class:`~hive.server.eviction.node.NodeRecord`; the radix tree
itself belongs to the engine (``sglang_patches.cache.radix_cache``).  No clock is read here: ages are counted in
admissions, and times come with the requests, so that all tensor-parallel ranks decide alike.
"""
