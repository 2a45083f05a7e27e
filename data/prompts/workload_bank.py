"""What `make_workloads.py` composes the workloads from: documents, code and questions, no logic.

All of it was written for this project and is dedicated to the public domain (CC0-1.0). No text of `bank.py` is in it,
from which drafts are trained. No person, office or company in it is real.
"""
# ruff: noqa: E501  (one sentence a line)

# A document is its name, its sentences, and questions with the numbers of the sentences that answer them.
DOCUMENTS = [
    {
        "name": "Canal locks",
        "sentences": [
            "A canal lock is a chamber between two stretches of water that lie at different heights.",
            "A boat that goes up enters through the lower gates, which are then closed behind it.",
            "A sluice in the upper gates is opened, and water from the upper stretch fills the chamber until both levels are equal.",
            "Only then can the upper gates be opened, because the pressure of the water holds them shut as long as the levels differ.",
            "Most gates are mitred: they meet in a shallow V that points upstream, so that the water itself presses them together.",
            "No pump is needed, but every passage lets one chamber of water run downhill.",
            "In a dry summer this water can run short, and side ponds then keep about half of each filling for the next boat.",
            "Where the hill is steep, several locks follow each other as a staircase, the upper gates of one being the lower gates of the next.",
        ],
        "questions": [
            ("Why can the upper gates not be opened too early?", [3]),
            ("What do side ponds do in a dry summer?", [6]),
            ("Why do the gates meet in a V?", [4]),
            ("Does a lock need a pump?", [5]),
        ],
    },
    {
        "name": "Making paper by hand",
        "sentences": [
            "Paper is a felt of plant fibres that hold together without glue.",
            "The fibres are cooked with an alkali, washed, and beaten until their ends fray.",
            "Beating matters more than any other step, since frayed fibres touch each other in many places.",
            "The pulp is stirred into a vat with a great deal of water, at about one part of fibre in a hundred.",
            "The maker dips a mould, a frame with a fine sieve, into the vat and lifts it level, so that a thin layer of fibres remains.",
            "A short shake in both directions crosses the fibres, and the sheet becomes equally strong in every direction.",
            "The wet sheet is laid on a woollen cloth, a pile of them is pressed, and the sheets are hung up to dry.",
            "A sheet for writing is finally dipped into gelatine, because ink would spread in it otherwise.",
        ],
        "questions": [
            ("Which step matters most, and why?", [2]),
            ("Why is the mould shaken?", [5]),
            ("What is gelatine used for?", [7]),
            ("How much fibre is in the vat?", [3]),
        ],
    },
    {
        "name": "How a bell is cast",
        "sentences": [
            "Bells are cast of bronze with about twenty parts of tin in a hundred, more than any tool or statue has.",
            "So much tin makes the metal hard and brittle, and it lets the bell ring for a long time.",
            "The founder first builds a core of brick and clay in the shape of the inside.",
            "An outer mould, the cope, is made with the shape of the outside, and inscriptions are pressed into it the wrong way round.",
            "The cope is lowered over the core, and the space between them is the bell.",
            "Both are buried in a pit, because the weight of the melt would lift the mould.",
            "The metal is poured at about eleven hundred degrees, and a large bell may take a week to cool.",
            "It is tuned by turning metal off the inside, which lowers its tones; nothing can be put back.",
        ],
        "questions": [
            ("Why is the mould buried in a pit?", [5]),
            ("What does so much tin do to the metal?", [1]),
            ("How is a bell tuned?", [7]),
            ("How long does a large bell take to cool?", [6]),
        ],
    },
    {
        "name": "Lighthouse lenses",
        "sentences": [
            "Until the nineteenth century the lamp of a lighthouse was backed by polished mirrors, and most of its light was lost.",
            "A single glass lens of the same size would have been so thick that it swallowed the light that it was to send.",
            "In 1822 Augustin Fresnel cut such a lens into rings and left out the thickness that does nothing.",
            "Each ring is a prism whose angle sends the light straight out to the horizon.",
            "Lenses were made in sizes called orders, and one of the first order is taller than a grown person.",
            "A large lens weighs several tonnes, so it was floated in a bath of mercury and turned by clockwork.",
            "The turning beam gives each light its own rhythm, by which sailors tell one coast from another.",
            "Today most of the lamps are small, and many of the old lenses stand in museums.",
        ],
        "questions": [
            ("What did Fresnel change about the lens?", [2]),
            ("Why was the lens floated in mercury?", [5]),
            ("How do sailors tell one light from another?", [6]),
            ("What was wrong with a single glass lens?", [1]),
        ],
    },
    {
        "name": "Salt from the sea",
        "sentences": [
            "A salt garden is a series of shallow ponds of clay through which sea water flows slowly.",
            "Sun and wind take water away in each pond, so that the brine becomes stronger from one to the next.",
            "Lime falls out first and gypsum second, and both stay behind in the early ponds.",
            "When the brine holds about ten times as much as the sea, common salt begins to form in the last ponds.",
            "The finest crystals float on the surface on calm evenings and are skimmed off with a flat board.",
            "The coarse salt grows on the ground and is raked together once a day.",
            "The bitter liquor that is left holds magnesium, and it is let back into the sea before it spoils the harvest.",
            "One heavy rain in August can end the season, because it thins the brine of every pond at once.",
        ],
        "questions": [
            ("Why is the bitter liquor let back into the sea?", [6]),
            ("When does common salt begin to form?", [3]),
            ("What can end the season?", [7]),
            ("How are the finest crystals harvested?", [4]),
        ],
    },
    {
        "name": "Seed banks",
        "sentences": [
            "A seed bank keeps the seeds of many plants so that none of them is lost for good.",
            "Seeds are dried until they hold about five parts of water in a hundred, and are sealed in bags of foil.",
            "They are then kept at eighteen degrees below zero, where most kinds live for decades.",
            "Every ten years or so a sample is sown on wet paper, and the share that sprouts is counted.",
            "If fewer than eighty-five in a hundred sprout, new plants are grown in the field and fresh seed is gathered.",
            "Some seeds, such as those of oak and cocoa, die when they are dried and cannot be kept in this way.",
            "Such plants are grown in orchards, or their buds are frozen in liquid nitrogen.",
            "A second set of every collection is sent to another country, so that a fire or a war cannot destroy both.",
        ],
        "questions": [
            ("Which seeds cannot be kept by drying?", [5]),
            ("What happens if too few seeds sprout?", [4]),
            ("Why is a second set sent to another country?", [7]),
            ("At what temperature are the seeds kept?", [2]),
        ],
    },
    {
        "name": "Leave rules of the Harrow Street Workshop",
        "sentences": [
            "Everyone at the workshop has twenty-eight days of paid leave in a calendar year.",
            "Leave is entered in the wall calendar in the kitchen at least three weeks before it begins.",
            "No more than two people of the same bench may be away at the same time.",
            "Up to six days that are left over in December may be taken until the end of March.",
            "Whoever falls ill during leave gets the days back, if a doctor's note is handed in within one week.",
            "In the first week of August the workshop is closed, and five days of everyone's leave are used for it.",
            "Days for moving house, for a wedding and for a funeral are not leave and are paid as work.",
            "Questions about the rules go to the person who has the blue folder that month.",
        ],
        "questions": [
            ("How many days may be carried over into the next year?", [3]),
            ("What must I do to get days back when I fall ill?", [4]),
            ("How many people of one bench may be away?", [2]),
            ("Is a day for moving house taken from my leave?", [6]),
        ],
    },
    {
        "name": "Warranty of the Alder 3 cargo bicycle",
        "sentences": [
            "The frame and the fork of the Alder 3 are under warranty for ten years from the day of purchase.",
            "The motor and the battery are under warranty for three years or fifteen thousand kilometres, whichever comes first.",
            "A battery that still holds seventy parts in a hundred of its first charge counts as sound.",
            "Brake pads, chains, tyres and bulbs wear out and are not covered.",
            "The warranty ends if the motor has been opened or its speed limit has been raised.",
            "A load of more than one hundred and twenty kilograms in the box counts as misuse.",
            "The bicycle has to be seen by a dealer after the first five hundred kilometres, and the stamp in the booklet is the proof.",
            "A repair under warranty does not prolong it, but a new frame brings a new period of ten years.",
        ],
        "questions": [
            ("How long is the warranty of the battery?", [1]),
            ("When does a battery count as sound?", [2]),
            ("How much load counts as misuse?", [5]),
            ("What ends the warranty of the motor?", [4]),
        ],
    },
    {
        "name": "Reading room of the Marsh Lane Library",
        "sentences": [
            "The reading room is open from ten in the morning until eight in the evening, and on Saturdays until four.",
            "A seat with a socket is booked at the desk, and it is given away if nobody comes within twenty minutes.",
            "Bags and coats are left in the lockers, which take a coin of one pound and give it back.",
            "Maps and manuscripts are ordered by noon and lie ready on the next morning.",
            "They are read at the long table near the window only, with a pencil and never with a pen.",
            "Photographs may be taken without a flash, and up to forty of them a day are free.",
            "Water in a closed bottle is allowed, but food and hot drinks are not.",
            "Groups of more than five people use the room on the second floor, which is booked for two hours at a time.",
        ],
        "questions": [
            ("When are manuscripts ready that I order today?", [3]),
            ("May I take photographs?", [5]),
            ("What happens if I come too late for my seat?", [1]),
            ("May I bring something to drink?", [6]),
        ],
    },
    {
        "name": "Report on the flood gate at Withy Bridge",
        "sentences": [
            "On the night of the third of February the flood gate at Withy Bridge did not close when the river rose.",
            "The first alarm reached the control room at ten past two, and the gate was still open at half past three.",
            "The motor had power, but a switch that reports the position of the gate was frozen.",
            "The control program waits for that switch, and it has no limit after which it goes on without it.",
            "Two members of the crew closed the gate with the hand wheel in forty minutes.",
            "Eleven cellars in Mill Row were flooded, and nobody was hurt.",
            "The switch has been replaced by one with a heater, and a second one has been mounted on the other side.",
            "The program now raises an alarm after ninety seconds and then closes the gate by the clock.",
        ],
        "questions": [
            ("Why did the gate not close?", [2, 3]),
            ("How was the gate closed in the end?", [4]),
            ("What damage was done?", [5]),
            ("What has been changed in the program?", [7]),
        ],
    },
    {
        "name": "Minutes of the allotment society",
        "sentences": [
            "The society has one hundred and six plots, and nineteen people are on the waiting list.",
            "The yearly rent of a plot rises from forty to forty-four pounds, since the water bill has grown by a third.",
            "A plot that lies fallow for one whole season is given to the next person on the list.",
            "Bonfires are allowed on the first Saturday of November only, and not within ten metres of a hedge.",
            "The new pump was paid for out of the reserve, which now holds eleven hundred pounds.",
            "Hens may be kept on plots of more than two hundred square metres, up to six of them and no cock.",
            "The compost course in the spring was full, and it will be held twice in the coming year.",
            "The next meeting is on the second Thursday of March in the room above the bakery.",
        ],
        "questions": [
            ("Why does the rent rise?", [1]),
            ("What happens to a plot that lies fallow?", [2]),
            ("Who may keep hens, and how many?", [5]),
            ("When are bonfires allowed?", [3]),
        ],
    },
    {
        "name": "Rope and its strength",
        "sentences": [
            "A rope is made of fibres that are twisted into yarns, yarns into strands, and strands into a rope, each step against the turn of the one before.",
            "Because the turns oppose each other, the rope cannot untwist, and friction holds the short fibres together.",
            "A laid rope has three strands and is easy to splice, while a braided one runs more smoothly through a block.",
            "A knot takes between a third and a half of the strength, since the fibres on the outside of the bend carry all the load.",
            "A good splice keeps nine tenths of it.",
            "Nylon stretches by a third before it breaks, which makes it fit for anchors and for climbing.",
            "Polyester hardly stretches and keeps its strength when it is wet, so sails are hoisted with it.",
            "Sunlight weakens all of them, and a rope that has faded on one side should be replaced.",
        ],
        "questions": [
            ("How much strength does a knot take?", [3]),
            ("Why can a rope not untwist?", [1]),
            ("Which fibre is used for anchors, and why?", [5]),
            ("When should a rope be replaced?", [7]),
        ],
    },
]

# Code, what to rename in it (name, new name), a line to replace (old, new, the request) and a docstring for its function.
CODE = [
    {
        "language": "python",
        "code": """def moving_average(values, width):
    if width < 1:
        raise ValueError("width must be 1 or more")
    averages = []
    total = 0.0
    for place, value in enumerate(values):
        total += value
        if place >= width:
            total -= values[place - width]
        if place >= width - 1:
            averages.append(total / width)
    return averages""",
        "rename": ("total", "window_sum"),
        "replace": (
            'raise ValueError("width must be 1 or more")',
            'raise ValueError(f"width must be 1 or more, got {width}")',
            "Put the value of width into the error message",
        ),
        "docstring": "Return the mean of every run of `width` neighbouring values.",
    },
    {
        "language": "python",
        "code": """class Inventory:
    def __init__(self):
        self.items = {}

    def add(self, name, count=1):
        self.items[name] = self.items.get(name, 0) + count

    def remove(self, name, count=1):
        if self.items.get(name, 0) < count:
            raise KeyError(name)
        self.items[name] -= count
        if self.items[name] == 0:
            del self.items[name]

    def total(self):
        return sum(self.items.values())""",
        "rename": ("items", "counts"),
        "replace": (
            "raise KeyError(name)",
            'raise KeyError(f"not enough of {name}")',
            "Say in the error that there is not enough of the item",
        ),
        "docstring": "Counts of things by name.",
    },
    {
        "language": "python",
        "code": """def read_settings(path):
    settings = {}
    with open(path) as file:
        for number, line in enumerate(file, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, sign, value = line.partition("=")
            if not sign:
                raise ValueError(f"line {number}: no '='")
            settings[key.strip()] = value.strip()
    return settings""",
        "rename": ("settings", "options"),
        "replace": (
            "with open(path) as file:",
            'with open(path, encoding="utf-8") as file:',
            "Open the file as UTF-8",
        ),
        "docstring": "Read `key = value` lines; blank lines and comments are skipped.",
    },
    {
        "language": "javascript",
        "code": """function groupBy(rows, field) {
  const groups = new Map();
  for (const row of rows) {
    const key = row[field];
    if (!groups.has(key)) {
      groups.set(key, []);
    }
    groups.get(key).push(row);
  }
  return groups;
}

function countBy(rows, field) {
  const groups = groupBy(rows, field);
  const counts = {};
  for (const [key, members] of groups) {
    counts[key] = members.length;
  }
  return counts;
}""",
        "rename": ("groups", "rowsByKey"),
        "replace": (
            "const key = row[field];",
            'const key = row[field] ?? "unknown";',
            'Use "unknown" as the key of rows that have no such field',
        ),
        "docstring": "Rows by the value of one of their fields.",
    },
    {
        "language": "python",
        "code": """def parse_duration(text):
    units = {"s": 1, "m": 60, "h": 3600}
    seconds = 0
    number = ""
    for letter in text:
        if letter.isdigit():
            number += letter
        elif letter in units and number:
            seconds += int(number) * units[letter]
            number = ""
        else:
            raise ValueError(f"cannot read {text!r}")
    if number:
        raise ValueError(f"{text!r} ends without a unit")
    return seconds""",
        "rename": ("number", "digits"),
        "replace": (
            'units = {"s": 1, "m": 60, "h": 3600}',
            'units = {"s": 1, "m": 60, "h": 3600, "d": 86400}',
            'Let it accept days as well, with the letter "d"',
        ),
        "docstring": "Seconds of a duration such as `1h30m`.",
    },
    {
        "language": "sql",
        "code": """SELECT customers.name,
       COUNT(orders.id) AS orders,
       SUM(orders.amount) AS amount
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.placed_on >= '2026-01-01'
  AND orders.cancelled = FALSE
GROUP BY customers.name
HAVING SUM(orders.amount) > 1000
ORDER BY amount DESC
LIMIT 20;""",
        "rename": ("customers", "clients"),
        "replace": (
            "JOIN orders ON orders.customer_id = customers.id",
            "LEFT JOIN orders ON orders.customer_id = customers.id",
            "Use a left join",
        ),
        "docstring": "The twenty customers who spent most this year.",
    },
    {
        "language": "python",
        "code": """class Timer:
    def __init__(self, clock):
        self.clock = clock
        self.started = None
        self.laps = []

    def start(self):
        self.started = self.clock()

    def lap(self):
        if self.started is None:
            raise RuntimeError("the timer is not running")
        now = self.clock()
        self.laps.append(now - self.started)
        self.started = now

    def mean(self):
        return sum(self.laps) / len(self.laps)""",
        "rename": ("laps", "intervals"),
        "replace": (
            "return sum(self.laps) / len(self.laps)",
            "return sum(self.laps) / len(self.laps) if self.laps else 0.0",
            "Let mean return 0.0 when there are no laps",
        ),
        "docstring": "Measures laps with a clock that it is given.",
    },
    {
        "language": "go",
        "code": """func Merge(left, right []int) []int {
	merged := make([]int, 0, len(left)+len(right))
	i, j := 0, 0
	for i < len(left) && j < len(right) {
		if left[i] <= right[j] {
			merged = append(merged, left[i])
			i++
		} else {
			merged = append(merged, right[j])
			j++
		}
	}
	merged = append(merged, left[i:]...)
	merged = append(merged, right[j:]...)
	return merged
}""",
        "rename": ("merged", "result"),
        "replace": (
            "if left[i] <= right[j] {",
            "if left[i] >= right[j] {",
            "Let it merge slices that are sorted from the largest to the smallest",
        ),
        "docstring": "Merge joins two sorted slices into one.",
    },
    {
        "language": "python",
        "code": """def find_duplicates(folder, digest):
    known = {}
    duplicates = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        size = path.stat().st_size
        for other in known.get(size, []):
            if digest(other) == digest(path):
                duplicates.append((other, path))
                break
        else:
            known.setdefault(size, []).append(path)
    return duplicates""",
        "rename": ("known", "paths_by_size"),
        "replace": (
            "if not path.is_file():",
            "if not path.is_file() or path.is_symlink():",
            "Leave out symbolic links",
        ),
        "docstring": "Pairs of files below a folder with the same content.",
    },
    {
        "language": "css",
        "code": """.card {
  display: flex;
  flex-direction: column;
  gap: 12px;
  padding: 16px;
  border: 1px solid #d0d0d0;
  border-radius: 8px;
}

.card-title {
  font-size: 18px;
  font-weight: 600;
  color: #222222;
}

.card-footer {
  display: flex;
  justify-content: space-between;
  color: #666666;
}""",
        "rename": ("card", "panel"),
        "replace": (
            "border-radius: 8px;",
            "border-radius: 4px;",
            "Make the corners half as round",
        ),
        "docstring": "A box with a title and a footer.",
    },
    {
        "language": "python",
        "code": """def wrap(text, width):
    lines = []
    current = ""
    for word in text.split():
        if not current:
            current = word
        elif len(current) + 1 + len(word) <= width:
            current += " " + word
        else:
            lines.append(current)
            current = word
    if current:
        lines.append(current)
    return "\\n".join(lines)""",
        "rename": ("current", "line"),
        "replace": (
            'return "\\n".join(lines)',
            "return lines",
            "Return the list of lines and not one text",
        ),
        "docstring": "Break a text into lines of at most `width` characters.",
    },
    {
        "language": "bash",
        "code": """#!/usr/bin/env bash
set -euo pipefail

source_dir="$1"
backup_dir="$2"
stamp="$(date +%Y-%m-%d)"
target="$backup_dir/$stamp"

if [ -e "$target" ]; then
  echo "there is a backup of today: $target" >&2
  exit 1
fi

mkdir -p "$target"
cp -a "$source_dir/." "$target/"
find "$backup_dir" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -r {} +
echo "saved $source_dir to $target\"""",
        "rename": ("target", "destination"),
        "replace": (
            "-mtime +30",
            "-mtime +90",
            "Keep backups for ninety days",
        ),
        "docstring": "Copies a folder into a backup of today and removes old ones.",
    },
]

# Questions whose answers are in nobody's prompt, and a short answer to each.
CHAT = [
    (
        "What should I pack for a weekend of walking in the hills?",
        "Layers, a rain jacket, a map, food, water and a torch.",
    ),
    (
        "How can I make my neighbours feel welcome when they move in?",
        "Introduce yourself, bring something small, and offer help with one concrete thing.",
    ),
    (
        "Why do some people like the smell of rain?",
        "Soil and plants give off substances when it rains that many people link with relief after a dry time.",
    ),
    (
        "Write a short story about a lamp that is afraid of the dark.",
        "Once there was a lamp on a desk that was lit all evening, for it feared the dark that it had never seen.",
    ),
    ("What makes a good teacher?", "Patience, a clear goal for each lesson, and an interest in how the pupils think."),
    (
        "How do I start to learn to draw?",
        "Draw simple things every day, look longer than you draw, and keep the pages.",
    ),
    (
        "What is the difference between a lake and a pond?",
        "There is no sharp line; a pond is small and shallow enough for light to reach the ground everywhere.",
    ),
    (
        "Give me advice for a long train journey with two small children.",
        "Pack food, one new toy each, and plan a walk through the train every hour.",
    ),
    (
        "How does one apologise well?",
        "Say what you did, that it was wrong, and what you will do otherwise, and ask for nothing in return.",
    ),
    (
        "What are some ways to save water at home?",
        "Repair dripping taps, shower for a shorter time, and use rain water in the garden.",
    ),
    (
        "Describe a quiet morning in a small fishing village.",
        "The boats are already out, gulls walk along the wall, and somewhere a kettle begins to sing.",
    ),
    ("Why do people keep diaries?", "To remember, to think clearly, and to see how they have changed."),
    (
        "What can I cook with lentils, onions and a tin of tomatoes?",
        "A thick soup: fry the onions, add lentils, tomatoes and water, and simmer for half an hour.",
    ),
    (
        "How should I prepare for my first day in a new job?",
        "Plan the way, write down questions, and learn the names of the people whom you will meet.",
    ),
    (
        "Write a friendly message that invites colleagues to lunch on Friday.",
        "Hello everyone, shall we have lunch together on Friday at half past twelve?",
    ),
    ("What are the advantages of living in a small town?", "Short ways, lower rents, and people who know each other."),
    ("How do I teach my dog to come when I call?", "Begin indoors, reward every time, and never call it to scold it."),
    (
        "Tell me about the feeling of being homesick.",
        "It is a longing for what is familiar, and it often comes in the evening.",
    ),
    (
        "What is a good way to remember names?",
        "Repeat the name at once, link it with a picture, and use it when you say goodbye.",
    ),
    (
        "How can two people with different tastes choose a film together?",
        "Each names three, each strikes out one of the other's, and chance decides.",
    ),
    (
        "Explain to a child why leaves fall in autumn.",
        "The tree takes back what is useful from its leaves and lets the rest go, so that it can rest in winter.",
    ),
    (
        "What would you say to a friend who failed an exam?",
        "That one exam is one day, and that you will help to plan the next attempt.",
    ),
    (
        "Write a poem of eight lines about an old wooden bridge.",
        "The bridge has carried carts and kings, and now it carries me.",
    ),
    (
        "How do I keep a wooden table in good condition?",
        "Wipe it with a damp cloth, oil it twice a year, and use mats under hot pots.",
    ),
    (
        "What are good questions to ask at a dinner with strangers?",
        "Ask what they are looking forward to, and what they have lately changed their mind about.",
    ),
    (
        "How can I read more books this year?",
        "Carry one with you, read ten pages before bed, and stop books that bore you.",
    ),
    ("Why is it hard to get up in winter?", "It is dark and cold, and the body waits for light to wake up."),
    ("Suggest a plan for a rainy Sunday with friends.", "Cook together, play one long game, and end with a film."),
    (
        "What should I think about before I adopt a cat?",
        "Time, costs, holidays, and who looks after it for the next fifteen years.",
    ),
    (
        "How do I give honest feedback without hurting anyone?",
        "Speak about the work and not the person, be specific, and say what was good as well.",
    ),
    (
        "Write the beginning of a mystery that is set in a post office.",
        "On Monday a parcel came back that nobody had ever sent.",
    ),
    ("What is the point of small talk?", "It shows goodwill and lets both sides find something to talk about."),
    (
        "How can I make a small room look larger?",
        "Light colours, few pieces of furniture, and a mirror opposite the window.",
    ),
    ("What are some healthy snacks for an afternoon at the desk?", "Nuts, an apple, carrots, or yoghurt with berries."),
    (
        "How do you choose a present for someone who has everything?",
        "Give time: a meal, a walk, or a ticket for something that you do together.",
    ),
    (
        "Describe how a market sounds early on a Saturday.",
        "Crates are set down, prices are called, and a radio plays behind the cheese.",
    ),
    ("Why do friendships end?", "Lives move apart, and sometimes nobody does the small work that keeps them."),
    (
        "How can I become less nervous before I speak in public?",
        "Practise aloud, begin with a sentence that you know by heart, and breathe out slowly.",
    ),
    (
        "What do I need to know before I plant a tree?",
        "How large it will be, how much light it needs, and where the pipes are.",
    ),
    (
        "Write a note of thanks to a bus driver who waited for me.",
        "Thank you for waiting this morning; you saved my day.",
    ),
    ("How does one learn to be patient?", "By practising with small things, and by noticing what makes one hurry."),
    ("What makes a city pleasant to walk in?", "Shade, benches, short blocks, and shops at eye level."),
    (
        "How can I share the housework fairly with my flatmates?",
        "Write down all of it, let everyone choose, and change it every month.",
    ),
    ("Tell me why people collect stamps.", "For the pictures, the order, and the hope of a rare one."),
    (
        "What should a letter to my future self contain?",
        "What you hope, what you fear, and what you do not want to forget.",
    ),
    (
        "How do I decide whether to repair or to replace a washing machine?",
        "Compare the price of the repair with half the price of a new one, and think of its age.",
    ),
    (
        "Give me ideas for a garden that needs little work.",
        "Shrubs, ground cover, gravel paths, and herbs in large pots.",
    ),
    ("What is a fair way to divide a cake among three people?", "One cuts, and the others choose first."),
]
