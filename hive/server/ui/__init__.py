"""``GET /hive/ui``: one page that shows what a server does, without a build step and without anything from outside."""
