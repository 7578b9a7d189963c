"""The client for HTTP servers, with a module for each group of routes."""
