"""The client for servers that speak HTTP, a module for each group of routes."""
