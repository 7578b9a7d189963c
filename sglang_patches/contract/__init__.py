"""What Hive relies on in SGLang: the table of hooks, seams, and an adapter for each release."""
