"""The Logits Cache (paper, section 6): kept next-token distributions, and sampling replayed over them.

- :mod:`~hive.server.logits_cache.head`: one distribution, cut to its most likely tokens;
- :mod:`~hive.server.logits_cache.sampling`: the sampler, one function for the live server and for replay;
- :mod:`~hive.server.logits_cache.trie`: the distributions by state, in host memory under a byte budget;
- :mod:`~hive.server.logits_cache.replay`: one request's walk through the trie.
"""
