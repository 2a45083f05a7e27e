"""Section 7 in sentences: what a cache gave back, from certified cells.

>>> prefix_prose.finding(results.frame())                      # doctest: +SKIP
"""

import math

import pandas

from ...analysis import claims, tables
from . import prefixes, working_sets


def tier_words(frame: pandas.DataFrame) -> list[str]:
    """Of each arm with a tier, as parts of a sentence: the length at which most requests must hit before it pays, and
    where its files were read from.
    """
    table = working_sets.miss_costs(frame).dropna(subset=["pays_above"])
    dearest = table.loc[table.groupby("arm", sort=False)["pays_above"].idxmax()] if len(table) else table
    return [
        f"{row.arm} loses {row.lost_ms:,.1f} ms a miss where it saves {row.saved_ms:,.1f} ms a hit "
        f"({row.prefix_tokens:,} tokens), and pays there above {row.pays_above:.0%} of hits"
        if row.lost_ms > 0
        else f"{row.arm} loses nothing by a miss"
        for row in dearest.itertuples()
    ] + [f"{arm} read its files from the {source}" for arm, source in working_sets.read_from(frame).items()]


def break_even_words(row) -> str:
    """A row of `break_even` as part of a sentence; it is of hits alone, a miss is `miss_costs`'."""
    if not math.isnan(row.measured):
        return f"from prefixes of about {row.measured:,.0f} tokens on, if all hit"
    return (
        f"from the shortest measured, {row.at_most:,.0f} tokens, on, if all hit"
        if not math.isnan(row.at_most)
        else f"from no length that was measured, the longest being {row.above:,.0f} tokens"
    )


def finding(frame: pandas.DataFrame, where: str = "On this host") -> str:
    """What was found, in sentences, each figure from certified cells; what was not measured is left out."""
    words, arms = [], prefixes.sequence(frame).set_index("arm")
    if prefixes.CACHED in arms.index and prefixes.CONTROL in arms.index:
        row, control = arms.loc[prefixes.CACHED], arms.loc[prefixes.CONTROL]
        longer = f"{claims.ratio_text(row.rename({'gain': 'ratio'}))} as long as one that finds it"
        words.append(
            f"a request that computes a prefix of {int(row['prefix_tokens']):,} tokens waits for its first token "
            f"{longer} (medians of {row['computed']:.0f} and {row['later']:.0f} requests); without the cache the first "
            f"waits {control['gain']:.2f} times as long as those behind it"
        )
    if len(table := prefixes.gains(frame)):
        metric = "request_throughput"
        words.append(f"of {len(table)} loads, requests a second are {claims.counted(table, metric)}")
        best, _ = claims.extremes(table.rename(columns={"gain": "ratio"}))
        if best is not None:
            words.append(
                f"the largest gain is at a hit rate of {best['hit_rate']:.0%} (prefix of "
                f"{best['prefix_tokens']:,.0f} tokens), {claims.ratio_text(best)}: {claims.words(best, metric)}"
            )
        elif table["low"].isna().all():
            words.append("nothing bounds the noise there, with neither a twin nor a second life")
    sources = working_sets.by_source(frame)
    for row in sources[(sources["source"] == "external") & sources["against_recompute"].notna()].itertuples():
        words.append(f"{row.arm} gives a prefix back {row.against_recompute:.2f} times as soon as computing it")
    words += [f"{row.arm} pays {break_even_words(row)}" for row in working_sets.break_even(frame).itertuples()]
    words += tier_words(frame)
    return f"{where} ({tables.labels(frame)}): {'; '.join(words)}." if words else "There is nothing to compare yet."
