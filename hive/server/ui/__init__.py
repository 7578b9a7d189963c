"""``GET /hive/ui``: a single page with a live view of the server, without a build step or external resources."""
