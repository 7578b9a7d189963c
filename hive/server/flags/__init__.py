"""The command line of the launcher: Hive's own flags, and what it refuses of SGLang's."""
