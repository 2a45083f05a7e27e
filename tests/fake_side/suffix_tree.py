"""Prints what suffix decoding proposes after 2, 3 where the prompt is 1 2 3 4 5 1 2 3."""

import numpy
from arctic_inference.suffix_decoding import SuffixDecodingCache

cache = SuffixDecodingCache(max_tree_depth=8, max_cached_requests=0)
tokens = numpy.array([1, 2, 3, 4, 5, 1, 2, 3], dtype=numpy.int32)
cache.start_request("one", tokens[:-1])
cache.add_active_response("one", [3])
print(list(cache.speculate("one", tokens, max_spec_tokens=3, max_spec_factor=4.0, min_token_prob=0.1).token_ids))
