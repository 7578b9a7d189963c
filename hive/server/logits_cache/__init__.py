"""The Logits Cache (paper, section 6): keeps next-token distributions, and replays sampling over them.

- :mod:`~hive.server.logits_cache.head`: one distribution, cut to its most likely tokens;
- :mod:`~hive.server.logits_cache.sampling`: the sampler, one function for live requests and for replay;
- :mod:`~hive.server.logits_cache.trie`: the distributions by state, in host memory within a byte budget;
- :mod:`~hive.server.logits_cache.replay`: the walk of one request through the trie.
"""
