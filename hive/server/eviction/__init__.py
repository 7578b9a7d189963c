"""Which KV leaves the device first: policies over what is known of each node of the radix tree.

Engine-free: a node is anything with an ``id`` and a :class:`~hive.server.eviction.node.NodeRecord`; the radix tree
itself is the engine's (``sglang_patches.cache.radix_cache``).  Ages are counted in admissions, never in seconds, so
that all tensor-parallel ranks decide alike.
"""
