"""The scheduler process: replay, admission into decode batches, statistics, control messages."""
