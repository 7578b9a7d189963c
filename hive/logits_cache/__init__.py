"""The Logits Cache (paper, section 6): kept next-token distributions, and sampling replayed over them.

- :mod:`~hive.logits_cache.head`: one distribution, cut to its most likely tokens;
- :mod:`~hive.logits_cache.sampling`: the sampler, one function for the live server and for replay;
- :mod:`~hive.logits_cache.trie`: the distributions by state, in host memory under a byte budget;
- :mod:`~hive.logits_cache.replay`: one request's walk through the trie.
"""
