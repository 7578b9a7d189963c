"""The operations that agent code awaits: model calls, tools, choices and child agents; and forking of their data."""
