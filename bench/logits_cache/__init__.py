"""What the Logits Cache is worth: replay against the same server without it, stock SGLang and NGRAM speculation.

``python -m bench.logits_cache --help`` lists the options.  How the parts divide the work:

- :mod:`~bench.logits_cache.workloads`: which states are sampled, how often, and one request's parameters;
- :mod:`~bench.logits_cache.arms`, :mod:`~bench.harness.servers`: the arms, and starting their servers;
- :mod:`~bench.logits_cache.client`: one request over HTTP, with what it took;
- :mod:`~bench.logits_cache.plan`: how much of a workload fits into the time there is;
- :mod:`~bench.logits_cache.run`: a block of requests, sent to all arms in turn;
- :mod:`~bench.logits_cache.overhead`, :mod:`~bench.logits_cache.micro`: recording, and replay without an engine;
- :mod:`~bench.logits_cache.short_extends`: the first token behind a few new ones;
- :mod:`~bench.logits_cache.analysis`: from samples to figures, pure functions;
- :mod:`~bench.logits_cache.report`, :mod:`~bench.logits_cache.plots`: JSON, table and pictures.
"""
