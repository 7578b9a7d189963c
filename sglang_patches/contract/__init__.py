"""What Hive relies on in SGLang: the table of hooks, other seams, and an adapter for each release."""
