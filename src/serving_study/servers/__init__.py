"""The life of an arm's servers: checks beforehand, start, ready, freeze, stop, and their counters."""
