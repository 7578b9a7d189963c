"""What agent code awaits: calls of models and tools, choices, other agents; and how their data is forked."""
