"""Where runs are kept: journal files and stores of many runs, and the questions with which runs wait for people."""
