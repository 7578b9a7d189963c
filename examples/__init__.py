"""Programs that show what Hive is for, each complete in one file."""
