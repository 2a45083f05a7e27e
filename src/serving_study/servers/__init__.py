"""The life of an arm's servers: what is checked beforehand, start, ready, freeze, stop, and what they count."""
