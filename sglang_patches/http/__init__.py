"""The HTTP process: the request middleware, Hive's own routes, and the control channel to the schedulers."""
