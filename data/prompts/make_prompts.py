#!/usr/bin/env python3
"""Compose `conversations.json`: 300 conversations in ShareGPT's format, for hosts without a network.

    python3 data/prompts/make_prompts.py            # write conversations.json, and its statistics and digest into README.md
    python3 data/prompts/make_prompts.py --check    # exit with 1 if either file is not what this script makes

`vllm bench serve --dataset-name sharegpt` sends the first turn and takes the second one's length in tokens as the
output length; the answers' words never reach the engine. Hence what matters is the spread of lengths, and prompts that
a drafter finds as natural as people's: pasted text to be edited, summarised or extracted (n-gram drafts copy it) beside
short questions.

Byte-identical on any Python >= 3.11: all chance comes from `random.Random(SEED).random()`, whose sequence is
guaranteed.
"""
# ruff: noqa: E501  (templates of prose, one a line)

import argparse
import hashlib
import json
import math
import random
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BANK = runpy.run_path(str(HERE / "bank.py"))
SEED = 20250117
COUNT = 300
BEGIN, END = "<!-- statistics: written by make_prompts.py -->", "<!-- end of statistics -->"


class Dice:
    """Chance built on `random()` alone, the one method whose sequence Python guarantees between versions."""

    def __init__(self, seed):
        self.random = random.Random(seed).random

    def below(self, n):
        return math.floor(self.random() * n)

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def pick(self, items):
        return items[self.below(len(items))]

    def sample(self, items, n):
        pool = list(items)
        return [pool.pop(self.below(len(pool))) for _ in range(n)]


def records(text):
    """The blocks of `key: value` and `key => value` lines as dicts: a list for each key, pairs where a line has ` => `."""
    result = []
    for block in text.strip().split("\n\n"):
        record = {}
        for line in block.splitlines():
            key, colon, rest = line.partition(": ")
            if colon and " " not in key:
                first, *others = rest.split(" => ")
                record.setdefault(key, []).append((first, *others) if others else first)
            else:
                key, _, rest = line.partition(" => ")
                record[key] = [rest]
        result.append(record)
    return result


def numbered(lines):
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))


def bullets(lines):
    return "\n".join(f"- {line}" for line in lines)


def fenced(language, code):
    return f"```{language}\n{code}\n```"


def upper(text):
    return text[0].upper() + text[1:]


def title_of(topic):
    return upper(topic["name"][0])


def paragraph(topic, facts=7):
    return " ".join(topic["gist"] + topic["fact"][:facts])


def article(topic):
    """The topic as a pasted document: a title and two paragraphs."""
    return f"{title_of(topic)}\n\n{paragraph(topic, 3)}\n\n{' '.join(topic['fact'][3:] + topic['example'])}"


# Each family below takes the dice and yields (family, turns): turns are question, answer, question, answer ...

READERS = [
    "I am a nurse with no technical background.",
    "I have to explain it to my ten-year-old daughter tonight.",
    "I am preparing for an oral examination next week.",
    "I read about it in the paper and did not follow.",
    "I am writing a short piece for our village newsletter.",
    "English is not my first language, so please keep the sentences short.",
    "I know the basics but never understood the reason behind them.",
    "We discussed this at dinner and nobody could say.",
    "I looked it up twice, and each time I got lost in the third paragraph.",
    "My pupils asked me this today and I promised them an answer by tomorrow.",
    "I am translating a book in which this comes up and want to be sure that I understand it.",
]
TOPIC_ENDS = [
    "Is there an everyday example?",
    "Please do not use any formulas.",
    "What is the main thing to remember?",
    "Please go into some detail.",
    "Start with the idea in one sentence and then tell me how it works step by step.",
    "About ten sentences are enough, with an example at the end.",
    "It may be long, but please leave out the history and keep to the mechanism.",
]
DECISIONS = [
    " Please answer with a table and a recommendation.",
    " A table would help, and then your honest recommendation, even if it depends.",
    " I have to decide by the end of the week, so compare them on the points that matter in practice.",
    " Which one would you choose?",
    " Please be fair to both; the decision is for the next three years.",
]


def follow_ups(dice, topic):
    """None, one or two more exchanges about a topic."""
    myth, truth = topic["myth"][0]
    (q1, a1), (q2, a2) = topic["qa"]
    name = topic["name"][0]
    pool = [
        [q1, f"{a1} {topic['example'][0]}"],
        [q2, a2],
        [f"A friend told me that {myth}. Is that right?", f"Not quite. {truth}"],
        ["Can you put that into one sentence?", topic["gist"][0]],
        [f"Give me two quiz questions about {name}.", f"1. {q1} ({a1})\n2. {q2} ({a2})"],
        [
            "Thanks. What should I remember if I forget everything else?",
            f"Above all this: {topic['gist'][0]} And one detail: {topic['fact'][3]}",
        ],
    ]
    return [turn for pair in dice.sample(pool, dice.pick([0, 0, 0, 0, 0, 1, 1, 1, 2, 2])) for turn in pair]


def explain(dice, topics):
    for topic in topics:
        ask, shape = topic["ask"][0], dice.below(4)
        myth, truth = topic["myth"][0]
        whole = f"{paragraph(topic, 3)}\n\n{' '.join(topic['fact'][3:])}\n\n{topic['example'][0]}"
        if shape == 0:
            question = f"{ask} {dice.pick(TOPIC_ENDS)}" if dice.below(2) else ask
            answer = f"{whole}\n\nOne more thing, since it is often misunderstood: {truth}"
        elif shape == 1:
            question = f"{ask} {dice.pick(READERS)}"
            answer = dice.pick(
                [
                    f"{topic['gist'][0]} {' '.join(topic['fact'][:4])}\n\nAn example: {topic['example'][0]}",
                    whole,
                    f"{whole}\n\nA common mistake is to think that {myth}. {truth}",
                ]
            )
        elif shape == 2:
            question = f"{dice.pick(READERS)} {ask} {' '.join(dice.sample(TOPIC_ENDS[:4], 2))}"
            answer = f"{whole}\n\nYou may hear that {myth}. {truth}"
        else:
            question = f"{ask} {dice.pick(TOPIC_ENDS)} {dice.pick(READERS)}"
            answer = f"In short: {topic['gist'][0]}\n\n{bullets(topic['fact'])}\n\n{topic['example'][0]}"
        yield "explain", [question, answer, *follow_ups(dice, topic)]


def myths(dice, topics):
    forms = [
        "Is it true that {}?",
        "My neighbour insists that {}. Is he right?",
        "True or false: {}. Please give the reason too.",
        "I have always believed that {}. Should I stop believing it, and if so, what is the right way to "
        "think about it?",
        "In a comment below a video somebody wrote that {}, and nobody objected. Please check that claim "
        "for me and explain what is really the case.",
    ]
    for topic in topics:
        myth, truth = topic["myth"][0]
        extra = dice.pick(
            ["", f"\n\n{paragraph(topic)}", f"\n\nSome background: {paragraph(topic)}\n\n{topic['example'][0]}"]
        )
        yield (
            "myth",
            [
                dice.pick(forms).format(myth),
                f"That is a common belief, but it is not accurate. {truth}{extra}",
                *follow_ups(dice, topic),
            ],
        )


def lessons(dice, topics):
    """Short prompts with long answers."""
    for topic in topics:
        name, (q1, a1), (q2, a2), (myth, truth) = topic["name"][0], *topic["qa"], topic["myth"][0]
        ask = dice.pick(
            [
                "Write a detailed article about {} with a section on misunderstandings and three questions at the end.",
                "Prepare a study sheet on {} for my class, with background, common errors and a short test "
                "with answers.",
                "I would like a long and thorough introduction to {}, including what people get wrong.",
            ]
        )
        answer = (
            f"# {title_of(topic)}\n\n## The idea\n\n{topic['gist'][0]}\n\n## How it works in "
            f"detail\n\n{numbered(topic['fact'])}\n\n"
            f"## An example\n\n{topic['example'][0]}\n\n## What people often get wrong\n\nIt is often said "
            f"that {myth}. {truth}\n\n"
            f"## Check yourself\n\n1. {q1}\n2. {q2}\n3. What would you tell somebody who says that {myth}?\n\n"
            f"## Answers\n\n1. {a1}\n2. {a2}\n3. {truth}\n\n## To take away\n\nIf you remember only two "
            f"things, take these. {topic['gist'][0]} {topic['fact'][2]}"
        )
        yield "article", [ask.format(name), answer]


def handouts(dice, topics):
    """The longest answers: two topics in one handout."""
    for a, b in zip(topics[::2], topics[1::2], strict=True):
        parts = [
            f"# {title_of(t)}\n\n{t['ask'][0]}\n\n{t['gist'][0]} "
            f"{' '.join(t['fact'])}\n\n{t['example'][0]}\n\nBeware of thinking that {t['myth'][0][0]}. "
            f"{t['myth'][0][1]}"
            for t in (a, b)
        ]
        questions = numbered([f"{q} ({answer})" for t in (a, b) for q, answer in t["qa"]])
        yield (
            "handout",
            [
                f"Our evening class has one double lesson, on {a['name'][0]} before the break and on "
                f"{b['name'][0]} after it. Please write a handout that covers both in full, with test questions.",
                f"{chr(10).join(parts)}\n\n# Questions\n\n{questions}",
            ],
        )


def summarise(dice, topics):
    """Pasted text to be condensed in one of several ways."""
    for topic in topics:
        text, (q1, a1), (q2, a2) = article(topic), *topic["qa"]
        request, answer = dice.pick(
            [
                (
                    "Summarise the following text in two sentences.",
                    f"{topic['gist'][0]} {topic['fact'][dice.below(5)]}",
                ),
                (
                    "Give me the key points of this text as a list.",
                    bullets(topic["gist"] + [topic["fact"][i] for i in (0, 2, 4)]),
                ),
                ("What is the main idea of this passage? One sentence, please.", topic["gist"][0]),
                (
                    "Turn the text below into three questions with answers for flash cards.",
                    f"Q: {topic['ask'][0]}\nA: {topic['gist'][0]}\n\nQ: {q1}\nA: {a1}\n\nQ: {q2}\nA: {a2}",
                ),
                (
                    "Shorten this to about a third of its length, in the original wording where possible.",
                    f"{paragraph(topic, 2)} {topic['example'][0]}",
                ),
                (
                    "Please arrange this text as a numbered outline and keep all of the statements.",
                    f"{title_of(topic)}\n\n{numbered(topic['gist'] + topic['fact'] + topic['example'])}",
                ),
            ]
        )
        yield (
            "summarise",
            [dice.pick([f"{request}\n\n{text}", f"{text}\n\n{request}"]), answer, *follow_ups(dice, topic)[:2]],
        )


def read_and_answer(dice, topics):
    for topic in topics:
        question, answer = dice.pick(topic["qa"])
        text = article(topic)
        if dice.below(2):
            request, answer = (
                f"Using only the text below, answer this question: {question}",
                f"{answer} The passage as a whole is about this: {topic['gist'][0]}",
            )
        else:
            request = (
                "Read the passage, answer the question in one line, and name one thing that the "
                f"passage does not tell us. {question}"
            )
            answer = f"{answer} The passage does not deal with the belief that {topic['myth'][0][0]}."
        yield "answer", [f"{request}\n\n{text}", answer]


SLIPS = [
    (" the ", " teh "),
    ("which", "wich"),
    (" their ", " there "),
    ("because", "becuase"),
    ("water", "watter"),
    ("different", "diferent"),
    ("between", "betwen"),
    ("several", "severel"),
    ("usually", "usualy"),
    ("through", "thru"),
    (" is ", " are "),
    ("other", "ohter"),
    ("about", "abuot"),
    ("people", "poeple"),
    (" of ", " off "),
    (" and ", " adn "),
    ("more", "moer"),
    ("keep", "keap"),
    ("time", "tiem"),
    (" than ", " then "),
]


def proofread(dice, topics):
    """A text with slips put in, to be returned without them: most of the answer copies the prompt."""
    for topic in topics:
        good = bad = paragraph(topic, dice.between(3, 6))
        found = []
        for right, wrong in dice.sample(SLIPS, len(SLIPS)):
            if right in bad and len(found) < 7:
                bad = bad.replace(right, wrong, 1)
                found.append(f'"{wrong.strip()}" became "{right.strip()}"')
        request = dice.pick(
            [
                "Correct the spelling and grammar and return the whole text, then list your changes:",
                "Please proofread this paragraph. Change nothing but mistakes, and tell me what you changed.",
                "Fix the typos in my draft:",
            ]
        )
        yield "proofread", [f"{request}\n\n{bad}", f"{good}\n\nChanges:\n{bullets(found)}"]


def digests(dice, topics):
    """The longest prompts: two to four articles in one."""
    for i in range(len(topics) // 4):
        group = topics[4 * i : 4 * i + 4][: dice.between(2, 4)]
        text = "\n\n".join(f"## {article(topic)}" for topic in group)
        request, answer = dice.pick(
            [
                (
                    "Here are some drafts for our science page. Write a headline and a one-sentence teaser for each.",
                    "\n\n".join(f"**{topic['ask'][0]}**\n{topic['gist'][0]}" for topic in group),
                ),
                (
                    "Make a reading sheet from these articles: for each the main idea, two facts and a "
                    "question with its answer.",
                    "\n\n".join(
                        f"{title_of(topic)}\nMain idea: {topic['gist'][0]}\n{bullets(topic['fact'][1:3])}\nQuestion: {topic['qa'][0][0]} Answer: {topic['qa'][0][1]}"
                        for topic in group
                    ),
                ),
                (
                    "Return a JSON list with the keys title, summary and example for the texts below.",
                    fenced(
                        "json",
                        json.dumps(
                            [
                                {"title": title_of(t), "summary": t["gist"][0], "example": t["example"][0]}
                                for t in group
                            ],
                            indent=2,
                            ensure_ascii=False,
                        ),
                    ),
                ),
            ]
        )
        yield "digest", [f"{request}\n\n{text}", answer]


def code(dice, snippets):
    for s in snippets:
        name = s["lang"] if s["lang"] in ("html", "sql", "yaml") else upper(s["lang"])
        name = {
            "html": "HTML",
            "sql": "SQL",
            "yaml": "YAML",
            "Javascript": "JavaScript",
            "Typescript": "TypeScript",
        }.get(name, name)
        bad, good = fenced(s["lang"], s["bad"]), fenced(s["lang"], s["good"])
        thing = {"SQL": "query", "YAML": "GitHub workflow", "HTML": "page fragment", "Bash": "script"}.get(
            name, "function"
        )
        article_ = "an" if name in ("HTML", "SQL") else "a"
        more = dice.pick(
            [
                [],
                [],
                ["Can you explain the reason in one sentence?", s["why"].split(". ")[0].rstrip(".") + "."],
                ["What exactly did the old version do, step by step?", numbered(s["walk"])],
            ]
        )
        yield "debug", [f"I have this {name} {thing}. {s['symptom']}\n\n{bad}", f"{s['why']}\n\n{good}", *more]
        yield (
            "review",
            [
                f"Explain line by line what this {name} code does, and say what you would change:\n\n{bad}",
                f"{numbered(s['walk'])}\n\n{s['why']}",
            ],
        )
        remarks = [
            "If anything does not work there, tell me which version you use.",
            "Try it with an empty input first, and then with the largest one that you expect.",
            "A common mistake is a version about which people say: "
            f"{s['symptom'].split('. ')[0].rstrip('.')}. This one avoids that.",
        ]
        yield "write", [f"Write {article_} {name} {thing} that {s['spec']}.", f"{good}\n\n{dice.pick(remarks)}"]
        yield (
            "improve",
            [
                f"Rewrite this code so that a reviewer would accept it. It {s['spec']}. Return only the code.\n\n{bad}",
                good,
            ],
        )


def how_to(dice, items):
    contexts = [
        "",
        "",
        " I have never done it before.",
        " I have an hour this evening and no special tools.",
        " Please list what I need first.",
        " What goes wrong most often?",
    ]
    for item in items:
        need = item["need"][0]
        parts = [
            f"You need {need}.\n\n{numbered(item['step'])}\n\n{item['tip'][0]}",
            f"{numbered(item['step'])}\n\nTip: {item['tip'][0]}",
        ]
        question, answer = item["more"][0]
        yield (
            "how-to",
            [
                item["ask"][0] + dice.pick(contexts),
                dice.pick(parts),
                *dice.pick(
                    [
                        [],
                        [question, answer],
                        [question, answer, "What do I have to get ready beforehand, again?", f"You need {need}."],
                    ]
                ),
            ],
        )
        yield (
            "checklist",
            [
                f"Turn these instructions for {item['name'][0]} into a checklist that I can "
                f"print:\n\n{' '.join(item['step'])} {item['tip'][0]}",
                f"{upper(item['name'][0])}\n\nGet ready: {need}\n\n"
                + "\n".join(f"[ ] {step}" for step in item["step"])
                + f"\n\nRemember: {item['tip'][0]}",
            ],
        )


def compare(dice, items):
    for item in items:
        a, b = item["a"][0], item["b"][0]
        if dice.below(2):
            table = f"| | {upper(a)} | {upper(b)} |\n|---|---|---|\n" + "\n".join(
                f"| {k} | {x} | {y} |" for k, x, y in item["row"]
            )
            request = dice.pick(DECISIONS[:2])
        else:
            table = "\n".join(f"- {k}. {upper(a)}: {x}. {upper(b)}: {y}." for k, x, y in item["row"])
            request = dice.pick(["", *DECISIONS[2:]])
        opening = f"Both are reasonable choices, and {len(item['row'])} points decide between {a} and {b}:"
        yield (
            "compare",
            [
                item["ask"][0] + request,
                f"{opening}\n\n{table}\n\nMy recommendation: {item['verdict'][0]}",
                *dice.pick([[], [], ["And in one sentence?", item["verdict"][0]]]),
            ],
        )


def facts(dice, items):
    pairs = [item for record in items for item in record["q"]]
    for question, answer in pairs:
        ((q2, a2),) = dice.sample([pair for pair in pairs if pair[0] != question], 1)
        yield (
            "fact",
            [
                question,
                answer,
                *dice.pick(
                    [[], [], [f"Another one: {q2[0].lower() if q2[:2] in ('Wh', 'Ho', 'In') else q2[0]}{q2[1:]}", a2]]
                ),
            ],
        )


def translate(dice, items):
    for item in items:
        for language in dice.sample(["French", "German", "Spanish"], 2):
            other = dice.pick([x for x in ("French", "German", "Spanish") if x != language])
            ask = dice.pick(
                [
                    f'Translate into {language}: "{item["en"][0]}"',
                    f"How do I say this in {language}? {item['en'][0]}",
                    f'I am in a hurry, what is "{item["en"][0]}" in {language}?',
                ]
            )
            yield (
                "translate",
                [
                    ask,
                    dice.pick([item[language][0], f"{item[language][0]}\n\n{item['note'][0]}"]),
                    f"And in {other}?",
                    item[other][0],
                ],
            )


def rewrite(dice, items):
    for item in items:
        better, why = item["good"][0], item["why"][0]
        yield (
            "rewrite",
            [
                f"{item['task'][0]}\n\n{item['bad'][0]}",
                *dice.pick([[better], [f"{better}\n\nWhat I changed: {why}"], [better, "Why is yours better?", why]]),
            ],
        )


def brainstorm(dice, items):
    for item in items:
        yield (
            "brainstorm",
            [
                item["ask"][0],
                f"{numbered(item['idea'])}\n\n{item['pick'][0]}",
                "Only the first three, please.",
                numbered(item["idea"][:3]),
            ][: dice.pick([2, 2, 4])],
        )


def plan(dice, items):
    for item in items:
        days = "\n\n".join(f"**{when}**\n{bullets([upper(x) for x in what.split('; ')])}" for when, what in item["day"])
        yield (
            "plan",
            [
                item["ask"][0],
                f"{days}\n\n{item['tip'][0]}",
                f'What is planned for "{item["day"][1][0]}", in one line?',
                item["day"][1][1] + ".",
            ][: dice.pick([2, 4])],
        )


# Documents made up with the dice; their answers are computed from the same figures.

NAMES = [
    "Amira",
    "Ben",
    "Chiara",
    "Dmitri",
    "Elif",
    "Femi",
    "Greta",
    "Hiro",
    "Ines",
    "Jonas",
    "Kavya",
    "Liam",
    "Mei",
    "Noor",
    "Oskar",
    "Priya",
]
GOODS = [
    "desk lamps",
    "notebooks",
    "water bottles",
    "backpacks",
    "headphones",
    "keyboards",
    "office chairs",
    "wall clocks",
    "umbrellas",
    "picture frames",
]
REGIONS = ["North", "South", "East", "West", "Centre", "Islands", "Coast", "Highlands"]
MONTHS = ["March", "April", "May", "June", "September", "October"]


def csv_text(header, rows):
    return "\n".join(",".join(str(x) for x in row) for row in [header, *rows])


def markdown_table(header, rows):
    return "\n".join("| " + " | ".join(str(x) for x in row) + " |" for row in [header, ["---"] * len(header), *rows])


def tables(dice, n):
    for _ in range(n):
        if dice.below(2):
            header, rows = ("region", "month", "units", "revenue"), []
            for month in dice.sample(MONTHS, dice.between(1, 3)):
                for region in dice.sample(REGIONS, dice.between(3, 6)):
                    units = dice.between(20, 400)
                    rows.append((region, month, units, units * dice.pick([12, 15, 18])))
            key, total, subject = 0, 3, "revenue"
        else:
            header = ("item", "warehouse", "stock", "ordered")
            rows = [
                (good, dice.pick(REGIONS), dice.between(0, 250), dice.between(0, 120))
                for good in dice.sample(GOODS, dice.between(4, 9))
            ]
            key, total, subject = 0, 2, "stock"
        sums = {}
        for row in rows:
            sums[row[key]] = sums.get(row[key], 0) + row[total]
        ranked = sorted(rows, key=lambda row: -row[total])
        top = ranked[0]
        request, answer = dice.pick(
            [
                (
                    f"Convert this CSV into a Markdown table, sorted by {subject}, highest first.",
                    markdown_table(header, ranked),
                ),
                (
                    f"What is the total {subject} for each {header[key]}, and overall?",
                    f"{bullets([f'{name}: {value:,}' for name, value in sums.items()])}\n\nOverall: "
                    f"{sum(sums.values()):,}",
                ),
                (
                    "Return these rows as a JSON list of objects.",
                    fenced(
                        "json",
                        "[\n"
                        + ",\n".join("  " + json.dumps(dict(zip(header, row, strict=True))) for row in rows)
                        + "\n]",
                    ),
                ),
                (
                    "Describe this table for a manager in two or three sentences.",
                    f"The table lists {len(rows)} rows with a total {subject} of "
                    f"{sum(row[total] for row in rows):,}. The highest figure is {top[total]:,} ({top[0]}, {top[1]}), "
                    f"the lowest {ranked[-1][total]:,} ({ranked[-1][0]}, {ranked[-1][1]}). On average a row "
                    f"has {sum(row[total] for row in rows) // len(rows):,}.",
                ),
            ]
        )
        follow = dice.pick([[], ["Which row is the highest?", f"{top[0]}, {top[1]}, with {top[total]:,}."]])
        yield "table", [f"{request}\n\n{csv_text(header, rows)}", answer, *follow]


def logs(dice, n):
    kinds = [
        ("INFO", "request served in {} ms"),
        ("INFO", "cache hit after {} ms"),
        ("WARN", "slow query took {} ms"),
        ("ERROR", "upstream timed out after {} ms"),
        ("ERROR", "connection refused, retrying in {} ms"),
    ]
    for _ in range(n):
        hour, lines, errors, count = dice.between(6, 21), [], [], {}
        service, minute = dice.pick(["checkout", "search", "billing", "login"]), dice.between(0, 10)
        for _ in range(dice.between(8, 22)):
            minute += dice.between(0, 2)
            level, message = dice.pick(kinds)
            line = (
                f"{hour:02d}:{minute:02d}:{dice.between(0, 59):02d} {level} {service}: "
                f"{message.format(dice.between(2, 90) * 10)}"
            )
            lines.append(line)
            count[level] = count.get(level, 0) + 1
            if level == "ERROR":
                errors.append(line)
        lines.sort()
        errors.sort()
        tally = ", ".join(f"{count[level]} {level}" for level in ("INFO", "WARN", "ERROR") if level in count)
        request, answer = dice.pick(
            [
                (
                    "Extract all ERROR lines from this log, unchanged, and count the lines of each level.",
                    f"{fenced('', chr(10).join(errors)) if errors else 'There are no ERROR lines.'}\n\nLines: {tally}.",
                ),
                (
                    "What happened in this log? Keep it short.",
                    f"The {service} service wrote {len(lines)} lines between {lines[0][:8]} and "
                    f"{lines[-1][:8]}: {tally}. "
                    + (
                        f"The first error was at {errors[0][:8]}. Timeouts and refused connections point to "
                        f"the upstream service rather than to {service} itself, so look there first."
                        if errors
                        else "There were no errors."
                    ),
                ),
                (
                    "Convert the log to CSV with the columns time, level, service and message.",
                    csv_text(
                        ("time", "level", "service", "message"),
                        [(*(parts := line.split(" ", 3))[:2], parts[2].rstrip(":"), f'"{parts[3]}"') for line in lines],
                    ),
                ),
            ]
        )
        yield "log", [f"{request}\n\n{chr(10).join(lines)}", answer]


def notes(dice, n):
    jobs = [
        "send the revised quote to the printer",
        "book the hall for the workshop",
        "fix the broken link on the home page",
        "ask the lawyer about the licence",
        "collect figures for the yearly report",
        "interview the two candidates",
        "renew the insurance",
        "test the backup",
        "order new badges",
        "write the invitation to the open day",
    ]
    topics = [
        "The budget for the autumn was discussed; it stays as it is, although travel is dearer.",
        "Visitors complained about the signs in the car park.",
        "The trial with longer opening hours will go on until December.",
        "Two volunteers have left and a notice will be put up.",
        "The new supplier delivers within three days, the old one took eight.",
        "There was a long talk about the colour of the brochure without a result.",
    ]
    for _ in range(n):
        people, month = dice.sample(NAMES, 3), dice.pick(MONTHS)
        tasks = list(zip(people, dice.sample(jobs, 3), sorted(dice.between(3, 28) for _ in people), strict=True))
        said = dice.sample(topics, dice.between(2, 4))
        lines = [
            f"Meeting notes, {month}. Present: {', '.join(people)}.",
            *said,
            *(f"{who} will {what} by {day} {month}." for who, what, day in tasks),
        ]
        lines = [lines[0], *dice.sample(lines[1:], len(lines) - 1)]
        request, answer = dice.pick(
            [
                (
                    "List the action items from these notes as who, what, by when.",
                    numbered([f"{who}: {what}, by {day} {month}" for who, what, day in tasks]),
                ),
                (
                    "Extract the tasks as JSON with the keys owner, task and due.",
                    fenced(
                        "json",
                        json.dumps([{"owner": a, "task": b, "due": f"{c} {month}"} for a, b, c in tasks], indent=2),
                    ),
                ),
                (
                    "Turn my notes into a short email to the team.",
                    f"Dear all,\n\nthank you for coming. In short: {' '.join(said)}\n\nThese tasks were "
                    f"agreed:\n{bullets([f'{who} will {what} by {day} {month}.' for who, what, day in tasks])}\n\nPlease tell me if I have missed anything.\n\nBest wishes",
                ),
            ]
        )
        yield (
            "notes",
            [
                f"{request}\n\n{' '.join(lines)}",
                answer,
                *dice.pick(
                    [[], [f"What does {people[0]} have to do?", f"{upper(tasks[0][1])}, by {tasks[0][2]} {month}."]]
                ),
            ],
        )


def emails(dice, n):
    for i in range(n):
        who, good = dice.pick(NAMES), dice.sample(GOODS, 2)
        a, b, order, day, month = (
            dice.between(2, 40),
            dice.between(2, 40),
            dice.between(10000, 99999),
            dice.between(3, 28),
            dice.pick(MONTHS),
        )
        mail = dice.pick(
            [
                f"Hello, on {day} {month} we received order {order}, but only {a} of the {a + b} {good[0]} "
                f"were in the parcel, and the {good[1]} have scratches. We open our shop on the following "
                f"Saturday and would like to know whether the rest can come before that. Regards, {who}",
                f"Dear team, I would like to change order {order}: please send {a} {good[0]} instead of "
                f"{a + b}, and add {b} {good[1]}. Delivery on {day} {month} still suits us; the address has "
                f"not changed. Many thanks, {who}",
            ]
        )
        complaint = mail.startswith("Hello")
        kind = "missing and damaged goods" if complaint else "change of order"
        request, answer = [
            (
                "Extract sender, order number, date, kind of request and items as JSON.",
                fenced(
                    "json",
                    json.dumps(
                        {"sender": who, "order": order, "date": f"{day} {month}", "kind": kind, "items": good}, indent=2
                    ),
                ),
            ),
            (
                "Draft a friendly reply to this customer.",
                f"Dear {who},\n\nthank you for your message about order {order}. "
                + (
                    f"I am sorry that only {a} of the {a + b} {good[0]} arrived and that the {good[1]} are "
                    f"scratched. We are sending the missing {b} and replacements for the damaged ones today "
                    "by express, so that they reach you before your opening. You need not return "
                    "anything.\n\nI wish you a good start on Saturday."
                    if complaint
                    else f"I have changed it to {a} {good[0]} and added {b} {good[1]}. Delivery remains on "
                    f"{day} {month}, and you will receive a new confirmation within the hour."
                )
                + "\n\nKind regards,\nCustomer service",
            ),
            (
                "Sort this message into one of: complaint, change, question, praise. Say why.",
                f"{'Complaint' if complaint else 'Change'}: the sender writes about {kind} in order {order}.",
            ),
        ][i % 3]
        yield "email", [f"{request}\n\n{mail}", answer]


def recipes(dice, n):
    dishes = [
        (
            "pancakes",
            {"flour": 60, "milk": 120, "sugar": 10, "butter": 10},
            "Mix everything, let the batter rest for twenty minutes and fry thin cakes on both sides.",
        ),
        (
            "potato soup",
            {"potatoes": 200, "carrots": 60, "leek": 50, "cream": 40},
            "Dice the vegetables, simmer them in water for twenty-five minutes, mash and stir in the cream.",
        ),
        (
            "granola",
            {"oats": 50, "almonds": 15, "honey": 15, "raisins": 20},
            "Mix all but the raisins, bake at 160 degrees for twenty-five minutes and stir twice; add the "
            "raisins when it is cool.",
        ),
        (
            "lentil salad",
            {"lentils": 80, "tomatoes": 70, "feta": 40, "onions": 20},
            "Boil the lentils for twenty minutes, cool them and fold in the rest with oil and vinegar.",
        ),
    ]
    for i in range(n):
        (dish, portion, method), serves, factor = dishes[i % len(dishes)], dice.pick([2, 4]), dice.pick([2, 3, 5])
        items, grams = list(portion), [g * serves for g in portion.values()]
        recipe = (
            f"{upper(dish)} for {serves}: "
            + ", ".join(f"{g} g {x}" for g, x in zip(grams, items, strict=True))
            + f". {method}"
        )
        yield (
            "recipe",
            [
                f"Scale this recipe up to {serves * factor} people and write the ingredients as a list.\n\n{recipe}",
                f"{upper(dish)} for {serves * factor}\n\n{bullets([f'{g * factor} g {x}' for g, x in zip(grams, items, strict=True)])}\n\n{method}",
                "How much does it all weigh before cooking?",
                f"{sum(grams) * factor:,} g.",
            ],
        )


def sums(dice, n):
    for i in range(n):
        who, a, b, c = dice.pick(NAMES), dice.between(3, 19), dice.between(4, 30), dice.between(2, 9)
        good = dice.pick(GOODS)
        question, answer = [
            (
                f"{who} buys {a} {good} at {b} euros each and pays {c} euros for delivery. What is the total?",
                f"{a} times {b} is {a * b}, and with delivery that makes {a * b + c} euros.",
            ),
            (
                f"A train leaves at {a:02d}:{b:02d} and travels for {c} hours and {20 + a} minutes. When "
                "does it arrive?",
                f"{a:02d}:{b:02d} plus {c} hours is "
                f"{(a + c) % 24:02d}:{b:02d}{' the next day' if a + c >= 24 else ''}. Another {20 + a} "
                f"minutes make it {((a + c) * 60 + b + 20 + a) // 60 % 24:02d}:{(b + 20 + a) % 60:02d}.",
            ),
            (
                f"A shop had {a * b} {good}, sold {a * c if c < b else a} of them and then received {b}. "
                "How many are there now? Show your working.",
                f"Start: {a * b}\nAfter the sale: {a * b} - {a * c if c < b else a} = "
                f"{a * b - (a * c if c < b else a)}\nAfter the delivery: {a * b - (a * c if c < b else a)} "
                f"+ {b} = {a * b - (a * c if c < b else a) + b}\n\nThere are "
                f"{a * b - (a * c if c < b else a) + b} {good}.",
            ),
        ][i % 3]
        yield "sum", [question, answer]


# How many conversations each family gives; the families that yield more candidates are cut to this by chance.
QUOTAS = {
    "explain": 72,
    "myth": 14,
    "article": 24,
    "handout": 8,
    "summarise": 20,
    "answer": 4,
    "proofread": 15,
    "digest": 10,
    "debug": 15,
    "review": 13,
    "write": 7,
    "improve": 5,
    "how-to": 16,
    "checklist": 9,
    "compare": 11,
    "fact": 8,
    "translate": 3,
    "rewrite": 7,
    "brainstorm": 7,
    "plan": 7,
    "table": 9,
    "log": 5,
    "notes": 4,
    "email": 3,
    "recipe": 2,
    "sum": 2,
}


def compose():
    """All conversations, in their final order."""
    dice = Dice(SEED)
    topics = records(BANK["TOPICS"])
    families = {}
    for source in [
        explain(dice, topics),
        explain(dice, topics),
        myths(dice, topics),
        lessons(dice, topics),
        handouts(dice, dice.sample(topics, 20)),
        summarise(dice, topics),
        read_and_answer(dice, topics),
        proofread(dice, topics),
        digests(dice, dice.sample(topics, 40)),
        code(dice, BANK["CODE"]),
        how_to(dice, records(BANK["HOWTOS"])),
        compare(dice, records(BANK["COMPARISONS"])),
        facts(dice, records(BANK["FACTS"])),
        translate(dice, records(BANK["PHRASES"])),
        rewrite(dice, records(BANK["REWRITES"])),
        brainstorm(dice, records(BANK["IDEAS"])),
        plan(dice, records(BANK["PLANS"])),
        tables(dice, 14),
        logs(dice, 7),
        notes(dice, 6),
        emails(dice, 6),
        recipes(dice, 3),
        sums(dice, 5),
    ]:
        for family, turns in source:
            families.setdefault(family, {}).setdefault(turns[0], turns)  # one conversation an opening
    chosen = [
        (family, turns) for family, quota in QUOTAS.items() for turns in dice.sample(families[family].values(), quota)
    ]
    return [
        {
            "id": f"{family}-{i:03d}",
            "conversations": [{"from": "gpt" if k % 2 else "human", "value": text} for k, text in enumerate(turns)],
        }
        for i, (family, turns) in enumerate(dice.sample(chosen, len(chosen)))
    ]


def render(conversations):
    """The bytes of conversations.json: one conversation a line, so that diffs can be read."""
    return ("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in conversations) + "\n]\n").encode()


def quantile(values, q):
    """Nearest-rank quantile."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def statistics(data):
    """The generated part of README.md, from the bytes of conversations.json."""
    conversations = json.loads(data)
    turns = [[turn["value"] for turn in c["conversations"]] for c in conversations]
    rows = [
        ("first prompt, words", [len(t[0].split()) for t in turns]),
        ("first prompt, characters", [len(t[0]) for t in turns]),
        ("first answer, words", [len(t[1].split()) for t in turns]),
        ("first answer, characters", [len(t[1]) for t in turns]),
        ("turns", [len(t) for t in turns]),
    ]
    quantiles = [
        ("minimum", 0),
        ("p10", 0.1),
        ("p25", 0.25),
        ("median", 0.5),
        ("p75", 0.75),
        ("p90", 0.9),
        ("maximum", 1),
    ]
    kinds = {}
    for c in conversations:
        kind = c["id"].rsplit("-", 1)[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return "\n".join(
        [
            BEGIN,
            "",
            f"{len(conversations)} conversations, {len({t[0] for t in turns})} distinct opening prompts, "
            f"{sum(len(t) for t in turns)} turns in all, {len(data):,} bytes.",
            "",
            markdown_table(
                ["", *(name for name, _ in quantiles)],
                [(name, *(f"{quantile(values, q):,}" for _, q in quantiles)) for name, values in rows],
            ),
            "",
            "Kinds: "
            + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0])))
            + ".",
            "",
            f"sha256 of `conversations.json`: `{hashlib.sha256(data).hexdigest()}`",
            "",
            END,
        ]
    )


def check(folder):
    """What is wrong with the files in `folder`, one message each; empty if they are what this script makes."""
    data, problems = render(compose()), []
    committed, readme = folder / "conversations.json", folder / "README.md"
    if not committed.is_file():
        problems.append(f"missing: {committed}")
    elif committed.read_bytes() != data:
        problems.append(f"differs from what make_prompts.py makes: {committed}")
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    if hashlib.sha256(data).hexdigest() not in text:
        problems.append(f"stale sha256 digest: {readme}")
    elif statistics(data) not in text:
        problems.append(f"stale statistics: {readme}")
    return problems


def write(folder):
    data, readme = render(compose()), folder / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    (folder / "conversations.json").write_bytes(data)
    readme.write_text(before + statistics(data) + after, encoding="utf-8")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is not what this script makes"
    )
    parser.add_argument("--folder", type=Path, default=HERE, help="where conversations.json and README.md lie")
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder)
        return 0
    problems = check(options.folder)
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print("  next:    python3 data/prompts/make_prompts.py", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
