"""Three multi-agent workflows over Hive's calls `prefill` and `decode`, and word problems for them to work on."""
