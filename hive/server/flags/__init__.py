"""The launcher's command line: Hive's own flags, and the settings of SGLang that it refuses."""
