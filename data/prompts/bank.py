"""The bank that `make_prompts.py` composes conversations from: text only, no logic.

Each block of `key: value` lines is a record, records are parted by a blank line, a key may repeat, and ` => ` parts a
question from its answer. One sentence a line, so that a change to one fact is a diff of one line.
All of it was written for this project and is dedicated to the public domain (CC0-1.0).
"""
# ruff: noqa: E501  (one sentence a line)

TOPICS = """
name: photosynthesis
ask: How do plants turn sunlight into food?
gist: Plants use the energy of light to build sugar from water and carbon dioxide, and give off oxygen as a by-product.
fact: The work is done in chloroplasts, small green bodies inside the cells of leaves.
fact: Chlorophyll, the green pigment in them, absorbs mostly red and blue light and reflects green, which is why leaves look green.
fact: In the first stage, light splits water molecules; the oxygen is released and the energy is stored in two carrier molecules, ATP and NADPH.
fact: In the second stage, the Calvin cycle, those carriers power the building of sugar from carbon dioxide that entered through pores called stomata.
fact: The plant burns some of the sugar at once, turns some into cellulose for its walls, and stores the rest as starch.
fact: On a hot dry day the stomata close to save water, so carbon dioxide runs short and growth slows.
example: A potato is a store of last summer's sunlight: the starch in it was made in the leaves and carried down to the tuber.
myth: plants get most of their mass from the soil => Most of a plant's dry mass is carbon taken from the air; the soil supplies water and small amounts of minerals.
qa: Where in the cell does it happen? => In the chloroplasts.
qa: Why do leaves look green? => Chlorophyll absorbs red and blue light and reflects green.

name: the tides
ask: Why are there two high tides a day?
gist: The Moon's gravity pulls a little harder on the near side of the Earth than on the far side, and the stretching makes two bulges of water that the turning Earth carries us through.
fact: The bulge facing the Moon exists because the water there is pulled more strongly than the Earth beneath it.
fact: The bulge on the opposite side exists because the Earth is pulled more strongly than the water there, so that the water is left behind.
fact: The Moon moves along its orbit while the Earth turns, so high tides come about 12 hours and 25 minutes apart.
fact: The Sun raises tides too, a little less than half as strong as the Moon's.
fact: At new and full moon the two act together and give spring tides; at the half moons they partly cancel and give neap tides.
fact: The shape of the coast matters more than anything else for the height: a funnel-shaped bay can turn a one-metre tide into a ten-metre one.
example: In the Bay of Fundy in Canada the difference between high and low water can exceed 15 metres, while in most of the Mediterranean it is barely noticeable.
myth: spring tides only happen in spring => Spring tides come twice a month all year round; the word is about water springing up, not about the season.
qa: How far apart are two high tides? => About 12 hours and 25 minutes.
qa: When do spring tides occur? => At new moon and at full moon.

name: vaccination
ask: How does a vaccine protect me from a disease I have never had?
gist: A vaccine shows the immune system a harmless piece or copy of a germ, so that it can prepare antibodies and memory cells before the real one arrives.
fact: The piece that the immune system learns to recognise is called an antigen.
fact: Some vaccines contain a weakened germ, some a killed one, some only a protein, and some the instructions for making that protein.
fact: After the injection, cells present the antigen to lymphocytes, and the few that happen to fit it multiply.
fact: Some of these produce antibodies for weeks or months; others become memory cells that can last for years.
fact: When the real germ turns up, the memory cells respond in days instead of weeks, often before there are any symptoms.
fact: A booster repeats the lesson, which raises the number and quality of the memory cells.
example: The tetanus vaccine trains the body against the toxin rather than the bacterium, and is repeated about every ten years because that memory fades.
myth: a sore arm after the injection means that the vaccine gave me the disease => A sore arm or a mild fever is the immune system reacting to the antigen; most vaccines contain nothing that can cause the disease.
qa: What is an antigen? => The piece of a germ that the immune system learns to recognise.
qa: What does a booster do? => It repeats the lesson and raises the number and quality of memory cells.

name: compound interest
ask: What is compound interest and why does everyone make such a fuss about it?
gist: Compound interest is interest paid on earlier interest as well as on the original sum, so that the balance grows by a constant factor each period instead of a constant amount.
fact: With a yearly rate r, a sum P becomes P times (1 + r) to the power of the number of years.
fact: The difference from simple interest is small at first and large later, because the growing part itself grows.
fact: The rule of 72 gives the doubling time: divide 72 by the rate in percent.
fact: Compounding more often, say monthly, raises the yield a little, and the effective annual rate states the result honestly.
fact: Fees compound as well: one percent a year sounds small but takes about a quarter of the final value over thirty years.
fact: For a borrower the same arithmetic works in reverse, and an unpaid credit card balance at 20 percent doubles in under four years.
example: 1,000 at 6 percent is about 1,791 after ten years and about 5,743 after thirty, without a single further deposit.
myth: starting ten years later can be made up for by saving slightly more => At 7 percent money doubles about every ten years, so a late starter must save roughly twice as much each month for a similar result.
qa: What does the rule of 72 estimate? => The number of years for a sum to double.
qa: What does the effective annual rate state? => The real yearly yield once the compounding within the year is counted.

name: inflation
ask: What actually causes inflation?
gist: Inflation is a sustained rise in the general price level, and it comes when spending grows faster than the goods and services there are to buy.
fact: It is measured with a basket of typical purchases whose cost is tracked from month to month.
fact: Demand-pull inflation follows when households, firms or governments try to buy more than the economy can produce.
fact: Cost-push inflation follows when an input that everything depends on, such as energy, becomes dearer.
fact: Expectations feed themselves: if workers and shops expect five percent, wages and prices are set accordingly.
fact: Central banks answer with higher interest rates, which make borrowing dearer and cool spending after a delay of a year or more.
fact: Most of them aim for about two percent, low enough to ignore and high enough to keep away from deflation.
example: If a basket cost 400 last year and costs 412 today, yearly inflation is 3 percent.
myth: falling inflation means falling prices => When inflation falls, prices still rise, only more slowly; falling prices are called deflation.
qa: How is inflation measured? => By the cost of a basket of typical purchases over time.
qa: What rate do most central banks aim for? => About two percent.

name: plate tectonics
ask: Why do earthquakes happen in some places and hardly ever in others?
gist: The Earth's outer shell is broken into plates that move a few centimetres a year, and most earthquakes and volcanoes lie along their edges.
fact: The plates are made of crust and the stiff top of the mantle, together called the lithosphere.
fact: At mid-ocean ridges plates part, hot rock rises and new sea floor forms.
fact: Where an ocean plate meets a continent it sinks beneath it, which makes deep trenches and chains of volcanoes.
fact: Where two continents meet neither sinks easily, and the crust crumples into mountains.
fact: At transform faults plates slide past each other; they stick, build up strain, and release it as earthquakes.
fact: The main pull comes from old, cold slabs of sea floor sinking into the mantle.
example: The Himalaya still rises by several millimetres a year because India is still moving north into Asia.
myth: the continents float on a sea of molten lava => The mantle beneath the plates is solid rock that creeps slowly; only small parts of it melt.
qa: How fast do plates move? => A few centimetres a year.
qa: What forms where plates part? => New sea floor, at a mid-ocean ridge.

name: the Domain Name System
ask: What happens when I type a web address, before the page even starts loading?
gist: The Domain Name System turns names such as example.org into the numeric addresses that computers use, by asking a hierarchy of servers and remembering the answers.
fact: Your computer first looks into its own cache, then asks a resolver, usually run by the provider or a public service.
fact: A resolver that does not know the answer asks a root server, which points to the servers of the top-level domain.
fact: Those point to the authoritative servers of the domain, which hold the records.
fact: An A record holds an IPv4 address, an AAAA record an IPv6 address, an MX record the mail servers and a CNAME an alias.
fact: Each record carries a time to live, the number of seconds for which it may be cached.
fact: Because of caching, a changed record takes up to its old time to live to be seen everywhere.
example: Before moving a website, administrators lower the time to live to five minutes a day ahead, so that the switch is quick.
myth: DNS changes need 48 hours to propagate => Nothing propagates; caches simply expire, and a record with a time to live of 300 seconds is renewed after five minutes.
qa: What does an MX record hold? => The names of a domain's mail servers.
qa: What limits how long a record is cached? => Its time to live.

name: TLS and the padlock in the browser
ask: What does the padlock in my browser really guarantee?
gist: TLS encrypts the connection and proves that the server holds the key for the name in the address bar; it says nothing about whether the people behind it are honest.
fact: At the start of a connection both sides agree on a fresh secret with a Diffie-Hellman exchange, which an eavesdropper cannot work out.
fact: The server sends a certificate that binds its public key to its domain name.
fact: The certificate is signed by a certificate authority that the browser or the operating system already trusts.
fact: The server signs the handshake with its private key, which shows that it owns the certificate.
fact: From then on, fast symmetric encryption protects every byte, and a check value reveals any change.
fact: Forward secrecy means that a key stolen next year cannot decrypt traffic recorded today.
example: On a cafe's wireless network, others can see that you visit your bank's domain, but not which page, your password or your balance.
myth: a site with a padlock is safe to buy from => A padlock shows an encrypted connection to that domain; a fraudster can get a certificate for a misspelt name in minutes.
qa: What does a certificate bind together? => A public key and a domain name.
qa: What is forward secrecy? => A key stolen later cannot decrypt traffic recorded earlier.

name: hash tables
ask: How can a dictionary look something up in constant time?
gist: A hash table computes a number from the key and uses it as a position in an array, so that a lookup jumps straight to the right place instead of searching.
fact: The hash function must give equal keys equal numbers and should spread different keys evenly.
fact: The number is reduced to the size of the array, usually with a remainder or a bit mask.
fact: Two keys can land in the same slot, which is called a collision.
fact: Chaining keeps a short list in each slot; open addressing tries further slots in a fixed order.
fact: When the table is too full, collisions pile up, so it is copied into one about twice as large.
fact: That copy is expensive but rare, and spread over all insertions the cost stays constant on average.
example: Python's dict starts with eight slots and grows when it is about two thirds full.
myth: a hash table lookup never takes longer than constant time => Constant time is the average; if all keys collide, a lookup degrades to a search through all of them.
qa: What is a collision? => Two keys that land in the same slot.
qa: Why is resizing affordable? => It is rare, so its cost averages out over all insertions.

name: binary search
ask: How does binary search find a name among a million with twenty comparisons?
gist: Binary search halves a sorted range at each step by comparing with the middle element, so a million entries need about twenty comparisons.
fact: It keeps two bounds and the promise that the target, if present, lies between them.
fact: If the middle element is too small, everything up to it can be dropped, and likewise on the other side.
fact: The number of steps is the base-two logarithm of the length, rounded up.
fact: The data must be sorted, and sorting once costs more than a single linear search.
fact: The usual mistakes are bounds that are off by one and a loop that never ends when two elements remain.
fact: In languages with fixed-width integers, adding the two bounds can overflow; low plus half the difference cannot.
example: Guessing a number between 1 and 100 with higher and lower as answers never takes more than seven guesses.
myth: binary search is always faster than a linear scan => For a few dozen elements a linear scan is often faster, because it reads memory in order and predicts well.
qa: How many steps does a million entries need? => About twenty.
qa: What must be true of the data? => It must be sorted.

name: garbage collection
ask: How does a programming language know when memory can be freed?
gist: A garbage collector frees the objects that the program can no longer reach, so that nobody has to release memory by hand.
fact: It starts from the roots: global variables, the stacks of all threads and the registers.
fact: A tracing collector marks everything reachable from the roots and sweeps up the rest.
fact: Reference counting keeps the number of references to each object and frees it when that falls to zero, but cannot see cycles.
fact: Most objects die young, so generational collectors examine new objects often and old ones seldom.
fact: A moving collector copies the survivors together, which keeps memory compact and allocation cheap.
fact: Pauses are the price; concurrent collectors do most of the work while the program runs.
example: CPython counts references and adds a cycle detector, while Go runs a concurrent mark-and-sweep collector with pauses well under a millisecond.
myth: a language with garbage collection cannot leak memory => A cache that is never emptied keeps its entries reachable, so the collector must keep them too.
qa: What are the roots? => Global variables, thread stacks and registers.
qa: What can plain reference counting not free? => Cycles of objects that refer to each other.

name: database indexes
ask: Why does adding an index make a query fast, and why not index everything?
gist: An index is a sorted copy of some columns with pointers to the rows, which turns a scan of the whole table into a short walk down a tree.
fact: Most databases use a B-tree, whose pages hold hundreds of keys, so three or four levels cover millions of rows.
fact: An index on (a, b) serves queries on a and on a and b together, but hardly any on b alone.
fact: If the index contains every column that the query needs, the table is not read at all.
fact: Every insert, update and delete must maintain every index, so each one slows down writing.
fact: A condition that wraps the column in a function usually cannot use a plain index on it.
fact: The planner ignores an index when a large part of the table matches, because reading in order is cheaper than jumping about.
example: Finding an order by customer among ten million rows can fall from four seconds to under a millisecond with one index.
myth: the database always uses an index if there is one => The planner estimates costs; for a condition that matches half of the rows, a full scan is the better plan.
qa: What structure do most indexes use? => A B-tree.
qa: What is the cost of an index? => Slower writes and more storage.

name: the TCP handshake
ask: Why does opening a TCP connection take a round trip before any data flows?
gist: TCP needs both sides to agree on starting sequence numbers, and the three messages that do it cost one round trip before the first request can be sent.
fact: The client sends SYN with its own starting number.
fact: The server answers SYN-ACK, which confirms that number and carries the server's.
fact: The client confirms with ACK and may already attach data to it.
fact: Sequence numbers let the receiver order segments, drop duplicates and ask for what is missing.
fact: The sender begins with a small window and roughly doubles it each round trip until packets are lost, which is called slow start.
fact: Keeping connections open and reusing them avoids both the handshake and the slow start.
example: With a round trip of 80 milliseconds, ten short requests over new connections waste at least 800 milliseconds on handshakes alone.
myth: more bandwidth always makes web pages load faster => For many small files the round-trip time dominates, and doubling the bandwidth changes almost nothing.
qa: What are the three messages? => SYN, SYN-ACK and ACK.
qa: What is slow start? => A sender starts with a small window and about doubles it each round trip.

name: the key-value cache of a language model
ask: Why does a language model server need so much memory beyond the weights?
gist: For every token already seen, a transformer keeps a key and a value vector in each layer, so that the next token can be computed without going through the whole text again.
fact: The size per token is two times the layers times the key-value heads times the head dimension times the bytes per number.
fact: It grows linearly with the length of the text and with the number of requests served together.
fact: Grouped-query attention shares keys and values among several query heads and shrinks the cache accordingly.
fact: Paged allocation cuts it into fixed blocks, so that memory is not reserved for text that may never come.
fact: Requests that begin with the same text can share its blocks, which is called prefix caching.
fact: When the cache is full, the server must make requests wait, or evict some and compute them again.
example: A model with 32 layers, 8 key-value heads of dimension 128 and 16-bit numbers needs 128 KiB a token, so 8,000 tokens take about 1 GiB.
myth: a bigger batch only costs compute => Each further request needs its own cache, and memory usually runs out before arithmetic does.
qa: What grows linearly with the length of the text? => The key-value cache.
qa: What does paged allocation avoid? => Reserving memory for text that may never come.

name: speculative decoding
ask: How can a second, smaller model make a large language model faster?
gist: A cheap drafter proposes several tokens and the large model checks them all in one pass, so that each pass can yield more than one token without changing the output distribution.
fact: Decoding is limited by reading the weights from memory, so checking five tokens costs about as much as making one.
fact: A proposed token is accepted with a probability that depends on how the two models rate it.
fact: At the first rejection the large model's own choice is used and the rest of the draft is dropped.
fact: The drafter can be a small model, an extra head, or simply a search for the last few words in the prompt.
fact: The n-gram variant shines where the answer copies the prompt, as in editing, extraction and refactoring.
fact: At high load the spare compute is gone, and rejected drafts then cost throughput.
example: With four drafted tokens, of which each is accepted with probability 0.7, a pass yields about 2.8 tokens on average.
myth: speculative decoding lowers the quality of the answers => With the standard acceptance rule the distribution of the output is exactly that of the large model.
qa: Why is checking several tokens cheap? => Decoding is limited by reading weights, which is done once for all of them.
qa: Where does the n-gram variant work best? => Where the answer copies from the prompt.

name: load balancing
ask: How does a load balancer decide which server gets my request?
gist: A load balancer spreads requests over several servers so that none is overloaded and a failed one is left out.
fact: Round robin deals requests out in turn and works well when they all cost about the same.
fact: Least connections sends the next request to the server with the fewest open ones, which copes better with uneven costs.
fact: Picking two servers at random and taking the less busy one comes close to the best choice at almost no cost.
fact: Health checks probe each server every few seconds and remove it after several failures.
fact: Sticky sessions keep a user on one server, at the price of uneven load.
fact: Consistent hashing sends the same key to the same server and moves few keys when a server is added.
example: A shop with four web servers can restart them one at a time during the day, because the balancer drains each before it stops.
myth: with a load balancer there is no single point of failure => The balancer itself can fail, so it is run in pairs with an address that moves between them.
qa: When is round robin enough? => When all requests cost about the same.
qa: What do health checks do? => They find failed servers and take them out.

name: black holes
ask: What is a black hole, and would it swallow everything around it?
gist: A black hole is a region where so much mass is packed together that nothing, not even light, can leave once inside the event horizon.
fact: Stellar black holes form when massive stars run out of fuel and their cores collapse.
fact: Supermassive ones, of millions to billions of solar masses, sit in the centres of most large galaxies.
fact: From a distance its gravity is that of any object of the same mass.
fact: Gas that falls in forms a hot disc, which can outshine the whole surrounding galaxy.
fact: Close to a small black hole the difference in gravity between head and feet would stretch an astronaut.
fact: Merging black holes shake space itself, and such gravitational waves were first detected in 2015.
example: If the Sun were replaced by a black hole of the same mass, the Earth would keep its orbit, though it would get very cold.
myth: black holes suck in everything like a vacuum cleaner => Objects orbit a black hole as they orbit a star; only what comes very close is captured.
qa: What is the event horizon? => The boundary from inside which not even light can leave.
qa: When were gravitational waves first detected? => In 2015.

name: the seasons
ask: Why is it warm in summer, if the Earth is then not closest to the Sun?
gist: The seasons come from the tilt of the Earth's axis, which makes the Sun stand higher and stay longer in the sky for half of the year in each hemisphere.
fact: The axis is tilted by about 23.4 degrees and keeps pointing in the same direction all year.
fact: In June the northern hemisphere leans towards the Sun, in December the southern one does.
fact: When the Sun is high, the same light falls on a smaller area and heats it more.
fact: Longer days add to that, because there is more time to warm up than to cool down.
fact: The warmest weeks come after the solstice, since land and sea take time to heat.
fact: Near the equator the Sun is always high, so there are wet and dry seasons rather than warm and cold ones.
example: The Earth is closest to the Sun in early January, in the middle of the northern winter.
myth: summer comes when the Earth is nearest to the Sun => The distance changes by only about three percent, and the nearest point falls in January; the tilt makes the seasons.
qa: How large is the tilt? => About 23.4 degrees.
qa: When is the Earth closest to the Sun? => In early January.

name: rainbows
ask: Why is a rainbow curved, and why are the colours always in the same order?
gist: A rainbow is sunlight bent, reflected once and bent again in millions of raindrops, each colour leaving at a slightly different angle.
fact: Light slows down on entering water and changes direction, and blue is bent a little more than red.
fact: It is reflected at the back of the drop and bent again when it leaves.
fact: Red light is brightest at about 42 degrees from the point opposite the Sun, violet at about 40 degrees.
fact: All drops at that angle lie on a cone with your eye at its tip, and a cone looks like a circle.
fact: The ground hides the lower part, so from an aeroplane you may see the whole ring.
fact: A second, fainter bow comes from two reflections inside the drop, and its colours are reversed.
example: With a garden hose and the Sun behind you, a fine spray at head height makes a small rainbow on any bright day.
myth: two people can look at the same rainbow => Each eye receives light from different drops, so everybody sees a rainbow of their own.
qa: At what angle is red brightest? => At about 42 degrees from the point opposite the Sun.
qa: Why are the colours of the second bow reversed? => Its light is reflected twice inside the drops.

name: sourdough
ask: How does sourdough rise without any yeast from a packet?
gist: A sourdough starter is a living mixture of wild yeasts and lactic acid bacteria: the yeasts make the gas, the bacteria make the acid.
fact: The microbes come from the flour itself, and regular feeding with flour and water selects the vigorous ones.
fact: Yeasts turn sugars into carbon dioxide and alcohol, and the gas is caught in the gluten.
fact: The bacteria make lactic acid, which tastes mild, and acetic acid, which tastes sharp.
fact: A warm, wet starter favours the mild acid, a cool and stiff one the sharp acid.
fact: The acid slows down mould and staling, so the loaf keeps for several days.
fact: A long cold rise in the refrigerator deepens the flavour and makes the timing easy.
example: A starter fed in the morning with equal weights of flour and water doubles in four to six hours at 25 degrees, and is then ready to use.
myth: a starter must be fed every day for ever => In the refrigerator it is content with one feeding every week or two.
qa: What makes the gas? => The wild yeasts.
qa: Which acid tastes sharp? => Acetic acid.

name: coffee extraction
ask: Why does my coffee taste sour on some days and bitter on others?
gist: Water dissolves the pleasant acids first, then sugars, then bitter compounds, so too little extraction tastes sour and too much tastes bitter.
fact: A finer grind exposes more surface and extracts faster.
fact: Hotter water extracts faster too; between 90 and 96 degrees suits most coffees.
fact: Longer contact extracts more, which is why a French press uses a coarse grind for four minutes.
fact: The ratio of coffee to water sets the strength, and about 60 grams a litre is a good start for filter coffee.
fact: Uneven grinding gives sour and bitter notes in the same cup, because the small pieces extract too much and the large ones too little.
fact: Change one thing at a time, and begin with the grind.
example: If a cup made at a medium grind tastes sour and thin, two notches finer at the same dose usually balances it.
myth: strong coffee and bitter coffee are the same thing => Strength is how much coffee is dissolved in the water; bitterness comes from extracting too much of each bean.
qa: What does a finer grind do? => It extracts faster.
qa: What is a good starting ratio for filter coffee? => About 60 grams a litre.

name: sleep cycles
ask: What happens during the different stages of sleep?
gist: A night consists of four to six cycles of about 90 minutes, in which the brain passes from light to deep sleep and then into dreaming sleep.
fact: In light sleep the heart slows, the muscles relax and waking up is easy.
fact: Deep sleep dominates the first half of the night and serves the repair of the body and the fixing of facts in memory.
fact: In REM sleep the eyes dart about, the brain is nearly as active as when awake, and the muscles are switched off.
fact: REM periods grow longer towards the morning, which is why we often wake from a dream.
fact: Daylight in the morning sets the inner clock, and bright light in the evening delays it.
fact: Caffeine blocks the signal of tiredness, and half of it is still there after about five hours.
example: Someone woken at 3 a.m. from deep sleep may be confused for minutes, while at 6 a.m. the same alarm feels much gentler.
myth: sleeping long at the weekend makes up for a short week => It eases the tiredness, but shifts the inner clock, and attention takes days to recover.
qa: How long is one cycle? => About 90 minutes.
qa: When is deep sleep most common? => In the first half of the night.

name: antibiotic resistance
ask: How do bacteria become resistant to antibiotics?
gist: Antibiotics kill the bacteria that are sensitive to them, so the few that survive by a lucky mutation or a borrowed gene multiply and take over.
fact: Bacteria divide as often as every twenty minutes, and each copy may contain errors.
fact: Some changes make a pump that throws the drug out, some change its target, and some make an enzyme that cuts it up.
fact: Resistance genes often sit on small rings of DNA that bacteria hand to each other, even across species.
fact: Every use of an antibiotic favours resistant strains, necessary or not.
fact: Antibiotics do nothing against viruses, so taking one for a cold has only drawbacks.
fact: Fewer prescriptions, vaccination, hygiene and less use in farming all slow the process down.
example: Penicillin-resistant staphylococci were common in hospitals within ten years of the drug's introduction.
myth: my body becomes resistant if I take antibiotics too often => The bacteria become resistant, not the body, and they can be passed on to other people.
qa: How do bacteria share resistance? => By handing on small rings of DNA.
qa: Do antibiotics help against a cold? => No, colds are caused by viruses.

name: Roman aqueducts
ask: How did the Romans bring water into their cities without pumps?
gist: Roman engineers led spring water downhill through covered channels with a very small, steady slope, sometimes for a hundred kilometres.
fact: Most of the route ran underground; the famous arches were used only where a valley had to be crossed.
fact: Slopes were often as little as 20 to 50 centimetres in a kilometre, surveyed with water levels and sighting boards.
fact: The channels were lined with waterproof mortar made of lime and crushed pottery.
fact: Settling tanks slowed the water down so that sand could sink.
fact: In the city, distribution tanks fed public fountains, baths and, for a fee, private houses.
fact: Overflowing water flushed the drains, which kept the streets cleaner.
example: The aqueduct of Nimes, which crosses the Pont du Gard, fell only about 12 metres over 50 kilometres.
myth: the Romans built arches because they could not make pipes that stand pressure => They built pressure pipes in several places, but arches were often cheaper to build and to repair.
qa: Where were arches used? => Only where a valley had to be crossed.
qa: What lined the channels? => Waterproof mortar of lime and crushed pottery.

name: the printing press
ask: Why did Gutenberg's press change Europe so quickly?
gist: Movable metal type let a workshop set a page once and print hundreds of copies, which made books about ten times cheaper within a generation.
fact: Gutenberg combined cast metal letters, an oil-based ink and a screw press adapted from wine making.
fact: A hand mould let one worker cast thousands of identical letters, which was the real invention.
fact: Around 1500 some 250 European towns had presses, and millions of books had been printed.
fact: Identical copies allowed scholars in different cities to refer to the same page and to correct the same error.
fact: Printers sought large markets and so helped to fix the spelling of national languages.
fact: Pamphlets spread religious and political disputes faster than authorities could suppress them.
example: Luther's theses of 1517 were printed in several German cities within weeks.
myth: Gutenberg invented printing => Woodblock printing is centuries older in East Asia, and movable type was made in China about 1040 and of metal in Korea before 1400.
qa: What did the hand mould make possible? => Casting thousands of identical letters.
qa: What was the press adapted from? => From the screw press of wine making.

name: the Silk Road
ask: What was traded along the Silk Road besides silk?
gist: The Silk Road was a web of routes between China, India, Persia and the Mediterranean, along which goods, techniques, faiths and diseases moved from market to market.
fact: Few merchants travelled the whole way; goods changed hands many times and grew dearer with each.
fact: Silk, porcelain and paper went west; glass, horses, wool and silver went east.
fact: Oases such as Samarkand and Dunhuang lived from caravans that needed water, fodder and rest.
fact: Buddhism reached China along these roads, and later Islam spread through Central Asia.
fact: Paper making travelled west in the eighth century and transformed administration and learning.
fact: Sea routes, which carry more at lower cost, gradually took over the trade.
example: A bale of silk could cost many times its original price by the time it reached a Roman market.
myth: the Silk Road was one road => It was a changing network of tracks and sea lanes, and the name was only made popular in the nineteenth century.
qa: Which faith reached China along the routes? => Buddhism.
qa: What replaced the caravans? => Sea routes.

name: supply and demand
ask: How do supply and demand set a price?
gist: A price settles where the amount that buyers want equals the amount that sellers offer, because any other price leaves one side with a reason to change it.
fact: Buyers want less at a higher price, sellers offer more.
fact: Above the balance goods remain unsold and sellers cut prices; below it shelves are empty and buyers bid up.
fact: A change in taste, income or the price of a substitute moves demand as a whole.
fact: A change in costs, technology or the weather moves supply as a whole.
fact: Elasticity says how strongly the amount reacts to the price; petrol reacts little, holidays react a lot.
fact: A price ceiling below the balance creates a shortage, and with it queues and waiting lists.
example: After a frost in coffee-growing regions less coffee is offered at every price, so the price rises and some drinkers turn to tea.
myth: a higher price always means more revenue => If demand is elastic, customers leave faster than the price rises, and revenue falls.
qa: What does elasticity measure? => How strongly the amount reacts to the price.
qa: What follows from a price ceiling below the balance? => A shortage.

name: double-entry bookkeeping
ask: Why does an accountant write every amount down twice?
gist: In double-entry bookkeeping each transaction is recorded in two accounts, once as a debit and once as a credit, so the totals must always agree.
fact: Assets equal liabilities plus equity, and every entry keeps that equation in balance.
fact: A debit raises assets and expenses; a credit raises liabilities, equity and income.
fact: The journal lists transactions by date, and the ledger lists them by account.
fact: A trial balance adds up all accounts, and unequal sums reveal an error.
fact: The income statement shows a period; the balance sheet shows a moment.
fact: It does not catch everything: an amount booked to the wrong account still balances.
example: Buying a laptop for 900 in cash debits equipment by 900 and credits cash by 900.
myth: debit means bad and credit means good => They only mean the left and the right side of an account; a debit to cash is welcome.
qa: Which equation must always hold? => Assets equal liabilities plus equity.
qa: What does a trial balance reveal? => Errors that leave debits and credits unequal.

name: bicycle gears
ask: Which gear should I use when, and what do the numbers mean?
gist: The gear ratio, teeth in front divided by teeth behind, says how often the rear wheel turns for one turn of the pedals.
fact: A large ratio goes far with each turn and needs force; a small one climbs easily.
fact: Most riders are comfortable at 70 to 90 turns a minute, and gears let them stay there.
fact: Shift before the climb, since a chain under full load shifts badly.
fact: Avoid the largest sprocket together with the largest chainring, because the chain runs at an angle and wears.
fact: A worn chain grinds down the sprockets, so replacing it in time saves money.
fact: A hub gear is sealed and shifts at a standstill, while a derailleur is lighter and more efficient.
example: With 48 teeth in front and 16 behind, one turn of the pedals moves a 700c bicycle a little over six metres.
myth: pushing a hard gear slowly trains the legs best => It mainly loads the knees; a quicker, lighter pedalling goes just as fast and is easier to keep up.
qa: What is the gear ratio of 48 and 16 teeth? => Three.
qa: When should you shift for a climb? => Before it begins.

name: heat pumps
ask: How can a heat pump deliver more heat than the electricity it uses?
gist: A heat pump does not make heat but moves it from outside to inside, and moving three units takes only about one unit of electricity.
fact: A liquid refrigerant evaporates at low pressure and takes up heat even from cold air.
fact: A compressor raises its pressure, and with it its temperature.
fact: The hot gas condenses indoors, gives off its heat, and returns through an expansion valve.
fact: The coefficient of performance is heat delivered divided by electricity used, commonly between 2.5 and 4.5.
fact: It falls as the temperature difference grows, so large radiators and underfloor heating with cooler water help.
fact: Ground sources are steadier than air but dearer to install.
example: A house that needs 12,000 kWh of heat a year uses about 4,000 kWh of electricity at an average coefficient of 3.
myth: heat pumps do not work below freezing => Air at minus ten degrees still contains plenty of heat; efficiency falls, but modern units run well below that.
qa: What does the compressor do? => It raises the refrigerant's pressure and temperature.
qa: What is a typical coefficient of performance? => Between 2.5 and 4.5.

name: lithium-ion batteries
ask: Why do phone batteries get worse with age, and what can I do about it?
gist: A lithium-ion battery stores energy by moving lithium ions between two electrodes, and side reactions slowly use up lithium and clog the surfaces.
fact: When charging, ions move into the graphite electrode; when discharging, they go back.
fact: A thin film forms on the graphite, which protects it but consumes lithium as it thickens.
fact: Heat speeds up every side reaction, and is the worst enemy.
fact: Staying at 100 percent keeps the voltage high and ages the battery even when it is not used.
fact: Shallow cycles wear less than full ones, so there is no need to empty it first.
fact: Charging below freezing can plate metallic lithium, which is harmful for good.
example: A phone kept mostly between 20 and 80 percent and out of the sun often has over 85 percent of its capacity after three years.
myth: a new phone must be charged for 24 hours first => That advice belongs to old nickel batteries; a lithium-ion battery needs no such treatment.
qa: What speeds up ageing most? => Heat.
qa: Is it necessary to empty the battery before charging? => No, shallow cycles wear it less.

name: noise-cancelling headphones
ask: How do headphones cancel noise?
gist: Microphones pick up the noise, a chip computes its mirror image, and the loudspeaker plays it so that the two cancel at your ear.
fact: Sound is a change in pressure, and adding an equal and opposite change leaves silence.
fact: The computation must be done within a fraction of a millisecond, or the waves no longer line up.
fact: Low, steady sounds such as engines and fans are therefore cancelled best.
fact: High and sudden sounds are left to the padding, which blocks them passively.
fact: A second microphone inside the cup measures what is left and corrects it.
fact: Wind on the microphones is mistaken for noise and may be heard as rumbling.
example: In an aeroplane the drone of the engines falls by 20 decibels or more, while the neighbour's voice stays audible.
myth: noise cancelling harms the ears by adding pressure => The added sound reduces the total pressure at the eardrum; the feeling of pressure comes from the missing low tones.
qa: Which sounds are cancelled best? => Low, steady ones.
qa: What does the inner microphone do? => It measures what is left and corrects it.

name: satellite navigation
ask: How does my phone know where it is?
gist: A receiver measures how long signals from several satellites have travelled, turns the times into distances and computes the one point that fits them all.
fact: Each satellite broadcasts its position and the exact time of its atomic clock.
fact: Light covers about 30 centimetres in a nanosecond, so tiny errors in time become metres.
fact: Three distances would fix a position, but the receiver's own clock is poor, so a fourth satellite solves for the time.
fact: The upper atmosphere delays signals, and receivers with two frequencies can correct for it.
fact: In streets between tall buildings, reflections lengthen the path and shift the position.
fact: Phones add mobile masts and wireless networks to find a first position quickly.
example: Without corrections for relativity, positions would drift by about ten kilometres a day.
myth: the satellites know where my phone is => They only broadcast; the phone computes its position itself and tells nobody unless an application does.
qa: How many satellites are needed? => At least four.
qa: Why are there errors between tall buildings? => Reflections lengthen the path of the signal.

name: pollination
ask: Why do farmers care so much about bees?
gist: Pollination carries pollen from one flower to another so that seeds and fruits can form, and insects do it for about three quarters of the world's main crops to some degree.
fact: Bees visit flowers for nectar and pollen, and dust themselves with grains in passing.
fact: A honeybee tends to keep to one kind of flower on a trip, which suits the plant.
fact: Bumblebees fly in colder weather and shake pollen out of tomato flowers by buzzing.
fact: Wheat, rice and maize are pollinated by wind or by themselves and do not need insects.
fact: Loss of flowers and nesting places, pesticides, parasites and climate all weaken pollinators.
fact: Strips of wild flowers along a field bring back many of them within a few years.
example: Almond growers in California rent more than two million hives each February.
myth: without honeybees there would be no food => Staple cereals would remain, but many fruits, nuts and vegetables would become scarce and dear.
qa: Which crops do not need insects? => Wheat, rice and maize.
qa: Why are bumblebees good for tomatoes? => They shake the pollen out by buzzing.

name: coral reefs
ask: What is coral bleaching, and can a reef recover from it?
gist: Corals are animals that live with algae inside their tissue; in water that is too warm they expel the algae, turn white and starve unless it cools soon.
fact: The algae supply up to nine tenths of the coral's energy and most of its colour.
fact: The coral builds a skeleton of limestone, and over centuries the skeletons form a reef.
fact: Reefs cover far less than one percent of the sea floor but shelter about a quarter of marine species.
fact: Water one degree warmer than the usual summer maximum for several weeks is enough for bleaching.
fact: A bleached coral is still alive and may recover over months, if it is left in peace.
fact: Overfishing and dirty water make recovery slower, because seaweed takes over the space.
example: After the warm year of 1998 some remote reefs off Australia recovered within about twelve years.
myth: corals are plants => Corals are animals related to jellyfish; the algae inside them do the photosynthesis.
qa: What do the algae supply? => Most of the coral's energy and colour.
qa: Is a bleached coral dead? => No, it may recover if the water cools soon.

name: composting
ask: How does a compost heap work, and why does mine smell?
gist: Composting is controlled rotting: microbes turn kitchen and garden waste into humus, provided they have air, moisture and a balance of carbon and nitrogen.
fact: Brown material such as dry leaves and cardboard supplies carbon; green material such as peelings and grass supplies nitrogen.
fact: About two to three parts of brown to one of green by volume works well.
fact: The heap should be as moist as a wrung-out sponge.
fact: A smell of rotten eggs means too little air, a smell of ammonia too much green.
fact: Turning it every week or two brings in air and speeds it up.
fact: Meat, cooked food and the droppings of cats and dogs stay out, since they attract rats or carry germs.
example: A heap of one cubic metre can reach 60 degrees within days, which kills most weed seeds.
myth: a compost heap needs a bought starter => A shovel of old compost or garden soil brings all the microbes that it needs.
qa: What does a smell of ammonia mean? => Too much green material.
qa: How moist should a heap be? => As moist as a wrung-out sponge.

name: linear perspective
ask: How do I draw a street so that it looks deep?
gist: In linear perspective all lines that run parallel into the distance meet at one vanishing point on the horizon, which lies at the height of the viewer's eyes.
fact: Begin with the horizon, and decide where the viewer stands.
fact: With one vanishing point you look straight down a street or into a room.
fact: With two, placed far apart, you see the corner of a building.
fact: Equal distances shrink as they recede; diagonals help to find the next lamp post or window.
fact: If you stand on level ground yourself, people as tall as you have their eyes on the horizon line, however far away they are.
fact: Distant things are also paler, bluer and less sharp, which painters call aerial perspective.
example: Rails that run straight away from you seem to meet on the horizon, although they stay 1.435 metres apart.
myth: good artists draw perspective by feeling alone => Many used strings, grids and rulers, from Brunelleschi's mirror to Vermeer's pin in the canvas.
qa: Where does the horizon lie? => At the height of the viewer's eyes.
qa: What is aerial perspective? => Distant things look paler, bluer and less sharp.

name: the placebo effect
ask: Does a placebo work even if it contains nothing?
gist: A placebo can ease symptoms such as pain and nausea through expectation and the ritual of care, but it does not shrink tumours or cure infections.
fact: Expecting relief makes the brain release its own painkillers, and a drug that blocks them also blocks much of the effect.
fact: Injections work better than pills, and a warm, confident doctor better than a curt one.
fact: Some improvement in a placebo group is no effect at all, because many complaints get better by themselves.
fact: That is why trials compare a drug with a placebo, and patients and doctors do not know who gets which.
fact: The nocebo effect is the reverse: people warned of a side effect report it more often.
fact: Open placebos, given honestly as such, have helped in some studies of back pain and irritable bowel.
example: In trials of migraine drugs about a quarter of the patients on placebo report relief within two hours.
myth: the placebo effect means that the illness was imaginary => Real pain responds as well; brain scans show changes in the areas that process it.
qa: What is the nocebo effect? => People who expect a side effect report it more often.
qa: Why are trials blinded? => So that expectation acts equally in both groups.

name: confirmation bias
ask: Why do people keep believing things after seeing evidence against them?
gist: Confirmation bias is the habit of looking for, trusting and remembering what fits a belief, and of passing over what does not.
fact: We ask whether we may believe what we like and whether we must believe what we dislike.
fact: Search words already contain the answer that we hope for.
fact: Mixed evidence often leaves both sides more certain, since each recalls the half that suits it.
fact: Clever people are not immune, because they are better at finding arguments.
fact: It helps to write down beforehand what result would change your mind.
fact: A colleague with the task of arguing against the plan catches what the group has passed over.
example: A manager who took a candidate for brilliant in the first minute tends to spend the other fifty-nine on easy questions.
myth: more information cures confirmation bias => More information gives more to choose from; it takes a procedure, such as a prediction made in advance, to counter it.
qa: Why are clever people not immune? => They are better at finding arguments for what they believe.
qa: What should be written down beforehand? => What result would change your mind.

name: spaced repetition
ask: What is the best way to remember vocabulary for good?
gist: Spaced repetition reviews each item just before it would be forgotten, so that a few short reviews at growing intervals keep it for years.
fact: Recalling an answer strengthens memory far more than reading it again.
fact: A review that takes some effort is worth more than one that comes at once.
fact: Typical intervals are one day, three days, a week, two weeks and a month, and a mistake sets an item back.
fact: Cards should ask for one thing each, and ask it in both directions for languages.
fact: Programs keep the schedule, but a box with five compartments does as well.
fact: Ten to twenty new words a day is what most learners can keep up.
example: With fifteen minutes a day, a learner adds about 3,000 words in a year and keeps around nine tenths of them.
myth: cramming the night before is useless => It can carry you through the next morning's test, but most of it is gone within a week.
qa: What strengthens memory more than rereading? => Recalling the answer.
qa: What happens to an item after a mistake? => It is set back to a shorter interval.
"""

HOWTOS = """
name: re-potting a houseplant
ask: My monstera has roots coming out of the bottom of its pot. How do I re-pot it without harming it?
need: a pot two or three centimetres wider, fresh potting mix, old newspaper, a watering can
step: Water the plant the day before, so that the root ball holds together.
step: Put a layer of mix into the new pot, high enough for the plant to sit two centimetres below the rim.
step: Tip the plant on its side and ease it out, holding the base of the stem and not the leaves.
step: Loosen roots that circle the ball, and cut off any that are brown and soft.
step: Set it upright, fill the sides with mix and press lightly to remove large gaps.
step: Water until it runs out at the bottom, and empty the saucer after half an hour.
tip: Keep it out of direct sun for a week and do not feed it for a month.
more: Which month is best for this? => Early spring, when growth is about to begin; avoid the depth of winter unless the plant is in trouble.

name: sharpening a kitchen knife on a stone
ask: How do I sharpen a kitchen knife on a whetstone?
need: a two-sided stone of about 1000 and 4000 grit, a bowl of water, a damp cloth
step: Soak the stone until no more bubbles rise, and set it on the damp cloth so that it cannot slip.
step: Hold the blade at about 15 to 20 degrees, which is roughly two stacked coins under the spine.
step: Push the edge away from you along the coarse side with light pressure, from heel to tip.
step: Repeat until you can feel a fine burr along the whole other side.
step: Turn the knife over and do the same until the burr changes sides.
step: Repeat both sides on the fine grit with less pressure, and finish with a few alternating strokes.
tip: Keep the angle steady; that matters more than the number of strokes.
more: How do I test whether it is sharp? => Slice a sheet of paper held in the air: a sharp edge cuts cleanly, a dull one catches or tears.

name: setting up SSH keys
ask: How do I log in to my server with an SSH key instead of a password?
need: a terminal, the server's address, your present password
step: Run `ssh-keygen -t ed25519` and choose a passphrase.
step: Copy the public key with `ssh-copy-id user@server` and enter the password one last time.
step: Log in with `ssh user@server` and check that you are asked for the passphrase only.
step: Start an agent with `ssh-add`, so that you type the passphrase once a session.
step: In `/etc/ssh/sshd_config` on the server, set `PasswordAuthentication no`.
step: Reload the service, and keep the present session open until a second login has worked.
tip: The private key never leaves your computer; make a new one for each device.
more: What do I do if I lose the laptop? => Log in from another device, or through the provider's console, and delete that laptop's line from `~/.ssh/authorized_keys`.

name: changing a bicycle tube
ask: I have a flat tyre on my bike and a new tube. What are the steps?
need: two tyre levers, a new tube, a pump
step: Open the brake if it is in the way and take the wheel out.
step: Let out the remaining air and push one lever under the bead, opposite the valve.
step: Hook it to a spoke, put in the second lever a hand's width along, and slide it round the rim.
step: Pull out the tube and feel along the inside of the tyre for glass or thorns.
step: Inflate the new tube until it just takes shape, put the valve in first and tuck in the rest.
step: Press the bead back with your thumbs, finishing at the valve, and check that no tube is pinched.
step: Inflate to the pressure printed on the tyre and put the wheel back.
tip: Find the cause of the puncture before fitting the new tube, or it will be flat again in five minutes.
more: I do not have tyre levers. What else can I use? => Often strong thumbs are enough if you push both beads into the middle of the rim first; spoon handles work, but may scratch the rim.

name: writing a condolence note
ask: A colleague's father has died and I do not know what to write on the card. Can you guide me?
need: a plain card, ten quiet minutes
step: Begin by saying that you have heard the news and are sorry.
step: Name the person who died, if you know the name.
step: Add one memory or one thing that your colleague has told you about him.
step: Offer something definite, such as taking over a meeting next week.
step: Say that no answer is needed.
step: Close simply, with your name.
tip: Four honest sentences are better than a page, and comparing it with your own losses rarely helps.
more: Could you give me an example? => "Dear Sam, I was so sorry to hear about your father. I remember you telling us how he built that boat in the garage. I will take the Thursday meeting for as long as you like. Please do not feel you have to reply. Thinking of you, Alex"

name: backing up a laptop
ask: What is a simple and reliable way to back up my laptop?
need: an external disk, a cloud or off-site storage account, one hour
step: List what you cannot replace: photos, documents, keys and passwords.
step: Switch on the system's own backup program and point it to the external disk.
step: Set it to run at least once a day while the disk is connected.
step: Add a second copy off-site, encrypted, for fire and theft.
step: Keep old versions for at least a month, because damage is often noticed late.
step: Restore three files to a new folder, and repeat that test twice a year.
tip: A copy that is always connected can be encrypted by malware together with the original, so unplug the disk afterwards.
more: Is a folder that syncs to the cloud not enough? => No. Sync copies deletions and damage as faithfully as everything else; only versions that stay unchanged protect you.

name: growing tomatoes on a balcony
ask: Can I grow tomatoes on a sunny balcony, and how?
need: a ten-litre pot for each plant, potting mix, stakes, tomato feed, six hours of sun
step: Choose a bush or cherry variety, which copes best with pots.
step: Plant it deep, up to the first leaves, since the buried stem will grow roots.
step: Put it outside only when nights stay above ten degrees.
step: Water at the base every day in summer, twice on hot days, and keep the leaves dry.
step: Feed it every week once the first fruits appear.
step: Tie the stem to its stake, and in tall varieties pinch out the shoots in the leaf joints.
tip: Irregular watering makes fruits split and causes dark patches at the bottom.
more: The leaves are curling upwards. Is that a disease? => Usually not: it is a reaction to heat, wind or too little water. Spots, or yellowing from below, would be more worrying.

name: preparing for a job interview
ask: I have an interview for a data analyst job on Friday. How should I prepare?
need: the advertisement, your CV, a friend who asks questions
step: Underline every requirement in the advertisement and write one example from your work next to each.
step: Turn the five best into short stories: situation, task, action, result, with a figure at the end.
step: Practise one live query on joins and one on window functions, since these come up most often.
step: Prepare a project that you can explain in two minutes to someone outside the field.
step: Read about the company's product and last year's news.
step: Write down three questions of your own about the team, the data and how success is measured.
tip: If you do not know something, say how you would find out; interviewers remember that kindly.
more: What should I ask about salary? => Let them name the range first if you can. If they press you, give a range whose lower end you would accept gladly.

name: reducing a large Docker image
ask: My Docker image for a small Python service is 1.8 GB. How do I make it smaller?
need: the Dockerfile, `docker history`, a dependency list
step: Run `docker history IMAGE` and find the largest layers.
step: Start from a slim base instead of the full one.
step: Use a multi-stage build: compile in the first stage and copy only the virtual environment into the second.
step: Install with `--no-cache-dir`, and remove package lists in the same `RUN` that made them.
step: Add a `.dockerignore` for `.git`, data, tests and caches.
step: Check whether a heavy library is needed at all, or only its CPU build.
tip: Deleting a file in a later layer hides it but does not shrink the image.
more: Should I use Alpine as the base? => For Python, usually not: wheels for musl are rarer, so packages may be compiled, and the gain over slim is small.

name: running a short meeting
ask: Our weekly meeting always takes ninety minutes. How can I get it down to thirty?
need: a written agenda, a timekeeper, a shared page for notes
step: Send the agenda a day before, with one question to be decided beside each item.
step: Move status reports into writing, and read them in silence in the first five minutes.
step: Invite only those who decide or who know; the others receive the notes.
step: Give each item a time, and have somebody else than the chair watch it.
step: When a discussion between two people lasts more than three minutes, let them continue afterwards.
step: End with who does what by when, read out aloud.
tip: Cancel the meeting if there is nothing to decide; people will come more gladly to the next.
more: What if my boss is the one who talks too long? => Ask before the meeting which decision is most important, put it first, and agree on a signal that time is up.

name: removing a red wine stain
ask: I spilled red wine on a cotton tablecloth. What should I do right now?
need: kitchen paper, cold water, washing-up liquid, salt or baking soda
step: Blot with kitchen paper from the edge to the middle, and do not rub.
step: Pour a little cold water on the stain and blot again.
step: Cover it with salt or baking soda and leave it for ten minutes.
step: Brush that off and dab with a spoonful of washing-up liquid in a cup of water.
step: Rinse through the back of the cloth with cold water.
step: Wash at the highest temperature that the label allows, with an oxygen bleach if it is white.
tip: Do not tumble-dry it before the stain has gone, because heat fixes it.
more: Does white wine really help? => It dilutes the stain a little, but water does the same and costs less.

name: learning to juggle three balls
ask: How can I learn to juggle three balls in a week?
need: three equal balls that do not bounce, a bed or sofa to stand in front of
step: Throw one ball from hand to hand in an arc at the height of your eyes, until it lands without your looking.
step: Take two balls; throw the second when the first is at its highest point.
step: Say throw, throw, catch, catch, and stop after each round.
step: Begin with the weaker hand as often as with the stronger one.
step: Put two balls in one hand and one in the other, throw three times and stop.
step: Add one throw at a time, four, five and six, before you try to go on for ever.
tip: If you walk forward while juggling, your throws drift away from you; face a wall.
more: I always hand the second ball across instead of throwing it. How do I stop? => Practise with two balls only and make the second throw higher than the first; the habit breaks within an evening.

name: bleeding a radiator
ask: One radiator is warm at the bottom and cold at the top. How do I fix that?
need: a radiator key, a small bowl, an old towel
step: Turn the heating up, let it warm, then switch off the pump and wait for half an hour.
step: Hold the bowl and the towel under the valve at the top of the radiator.
step: Turn the key anticlockwise by a quarter to a half turn until you hear air hissing.
step: Wait until a steady stream of water comes, then close the valve.
step: Read the pressure on the boiler, and top up if it is below the green range.
step: Switch the heating on and check that the radiator is hot all over.
tip: Begin on the lowest floor and work upwards, since air collects at the top.
more: It is cold at the bottom instead. Is that air as well? => No, that is usually sludge; the radiator has to be taken off and flushed, or the system cleaned.

name: finding a slow SQL query
ask: Our PostgreSQL database became slow this week. How do I find the queries that cause it?
need: access as a superuser, the extension pg_stat_statements, a quiet half hour
step: Switch on `pg_stat_statements` and reset its counters at the start of a busy hour.
step: Sort by total execution time, not by the mean, since a fast query run a million times matters more.
step: Take the first five and run each with `EXPLAIN (ANALYZE, BUFFERS)`.
step: Compare estimated and actual row counts; a factor of a hundred points to stale statistics.
step: Look for sequential scans on large tables that return few rows, and for sorts that spill to disk.
step: Change one thing, an index or the query, and measure again with the same parameters.
tip: Check first for a transaction left open for hours, which stops vacuum from cleaning up.
more: How do I see what is running right now? => `SELECT pid, now() - query_start AS running, state, query FROM pg_stat_activity WHERE state <> 'idle' ORDER BY running DESC;`

name: cooking rice in a pot
ask: How do I cook rice in an ordinary pot without burning it?
need: a pot with a tight lid, one cup of long-grain rice, one and a half cups of water, salt
step: Rinse the rice in a sieve until the water is nearly clear.
step: Bring rice, water and salt to the boil without the lid.
step: Stir once, cover, and turn the heat to the lowest setting.
step: Leave it for twelve minutes and do not lift the lid.
step: Take it off the heat and let it rest for ten minutes, still covered.
step: Loosen it with a fork.
tip: Most burnt rice comes from too much heat in the middle part, not from too little water.
more: Does brown rice need anything different? => Yes: two cups of water for a cup of rice and about thirty minutes on low heat, then the same rest.

name: reading a scientific paper
ask: I am a first-year student and papers take me days. How do I read one efficiently?
need: the paper, a pencil, a page for notes
step: Read title, abstract and conclusion, and write down the claim in one sentence.
step: Look at the figures and captions, and guess what each shows before reading about it.
step: Decide whether it is worth more time; most papers are not.
step: Read the introduction for the question and the method for how it was answered.
step: Mark each term that you do not know and look up only those that occur three times.
step: Write five lines: question, method, result, weakness, and what you would do next.
tip: Read with a second person; explaining a figure aloud shows quickly what you have not understood.
more: How do I judge whether the result is solid? => Look at the sample size, the comparison group, the error bars, and whether data and code are available; then search for replications.
"""

COMPARISONS = """
a: PostgreSQL
b: SQLite
ask: Should I use PostgreSQL or SQLite for a small internal web application?
row: Set-up => a server to install and maintain => a single file and a library
row: Concurrent writers => many => one at a time
row: Types => strict and rich => flexible, strict on request
row: Backup => dump or replication => copy the file with its backup command
verdict: With fewer than a few dozen users and one machine, begin with SQLite; move to PostgreSQL when several machines must write or you need its extensions.

a: a heat pump
b: a gas boiler
ask: We have to replace our heating. What speaks for a heat pump and what for a gas boiler?
row: Purchase => dearer, often subsidised => cheaper
row: Running costs => depend on the electricity price and the insulation => depend on the gas price and carbon taxes
row: Emissions => low, and falling as the grid gets cleaner => fixed by the fuel
row: Suits => insulated houses with large radiators => houses that need very hot water
verdict: For a reasonably insulated house the heat pump usually wins over fifteen years; get the heat loss calculated first, because that decides everything else.

a: REST
b: gRPC
ask: What are the trade-offs between REST and gRPC for talking between services?
row: Format => JSON, readable => Protocol Buffers, compact
row: Contract => optional, by OpenAPI => required, generates code
row: Streaming => awkward => built in, both ways
row: Browsers => native => need a proxy
verdict: Use gRPC between your own services when latency or streaming matters, and REST at the edge, where others must be able to try it with curl.

a: a standing order of index funds
b: picking single shares
ask: Is it better to buy an index fund every month or to pick shares myself?
row: Effort => an hour a year => several hours a week
row: Costs => about 0.1 to 0.3 percent a year => trading costs and spreads
row: Risk => that of the market => that of the market plus that of each firm
row: Odds => the average return => most pickers fall behind the average
verdict: For money that you need in old age, the index fund; if picking is fun, do it with a small part whose loss would not hurt.

a: threads
b: asynchronous code
ask: When should I use threads and when async in Python?
row: Best for => blocking libraries and a few dozen tasks => thousands of connections that mostly wait
row: Switching => anywhere, by the system => only at await
row: Shared data => needs locks => safer between awaits
row: Cost per task => about a stack each => a small object
verdict: Choose async if your libraries support it and you have many connections; otherwise threads are simpler, and for pure computation use processes.

a: the train
b: the car
ask: Is it more sensible to commute 45 kilometres by train or by car?
row: Time => fixed, and usable for reading => varies with traffic
row: Costs => a season ticket => fuel, parking and wear, about 0.30 a kilometre
row: Flexibility => bound to the timetable => leave at any time
row: Strain => some waiting => constant attention
verdict: At 90 kilometres a day the car costs about 27 in total, so any season ticket under 400 a month is cheaper; decide by the last kilometre at each end.

a: oats
b: muesli from a packet
ask: Is plain porridge healthier than muesli from the supermarket?
row: Sugar => almost none => often 15 to 25 percent
row: Fibre => about 10 percent => 6 to 9 percent
row: Price => very low => three to five times as much
row: Effort => five minutes => none
verdict: Oats with your own fruit and nuts win on sugar and price; if you prefer muesli, look for one with less than 10 grams of sugar in 100.

a: tabs
b: spaces
ask: My team argues about tabs and spaces. What are the actual differences?
row: Width => each reader sets it => the same everywhere
row: Alignment => breaks in tables and comments => exact
row: Accessibility => better for large fonts and screen readers => fixed width
row: File size => smaller => slightly larger
verdict: Follow the language's formatter and never discuss it again: gofmt uses tabs, Black and rustfmt use spaces.

a: a monolith
b: microservices
ask: We are five developers starting a new product. Monolith or microservices?
row: Deployment => one => many, with versions to match
row: Calls => in process, fast and safe => over a network that can fail
row: Scaling => as a whole => part by part
row: Teams => one code base, shared rules => independent, with contracts
verdict: Five developers should build a monolith with clear modules; split off a part when it has to scale or be released differently.

a: cast iron
b: non-stick
ask: Should I buy a cast-iron pan or a non-stick one?
row: Heat => very hot, holds it long => moderate only
row: Care => dry at once, oil now and then => soft sponge, no metal
row: Lifetime => generations => three to five years
row: Best for => steak, bread, potatoes => eggs, fish, pancakes
verdict: If there is room for only one, take cast iron and learn to season it; a cheap small non-stick pan for eggs completes the kitchen.

a: tensor parallelism
b: data parallelism
ask: For serving a language model on two GPUs, should I split the model or run two copies?
row: Fits => models larger than one GPU => models that fit on one GPU with room for the cache
row: Latency => lower for each request => that of one GPU
row: Throughput => limited by communication => about twice one GPU
row: Failure => one GPU stops all => half remains
verdict: If the model fits comfortably, run two copies for throughput; split it when weights plus cache are too large or when latency for single users matters most.

a: renting
b: buying
ask: How do I decide between renting a flat and buying one?
row: Monthly cost => rent => interest, maintenance and the return that the deposit no longer earns
row: Moving => a few weeks => months, and high fees
row: Risk => rents may rise => one large asset in one place
row: Saving => needs discipline => forced by the mortgage
verdict: Divide the price by the yearly rent: below about 20 buying is attractive, above 30 renting is; in between it depends on whether you stay for at least seven years.

a: CSV
b: Parquet
ask: Should our analytics team store its data as CSV or as Parquet?
row: Reading one column => reads the whole file => reads that column
row: Size => large => often a fifth of it
row: Types => guessed by each reader => stored in the file
row: Opening by hand => any editor => needs a tool
verdict: Use Parquet for everything that a program reads again and CSV for small tables that people exchange.

a: running
b: swimming
ask: I sit all day and want to get fitter. Is running or swimming the better choice?
row: Joints => impact with every step => almost none
row: Muscles => legs and core => the whole body
row: Time => from the front door => travel and changing
row: Bones => strengthened => hardly
verdict: The better one is the one that you will still do in March; if nothing hurts, run twice a week and swim once.
"""

FACTS = """
q: What is the capital of Australia? => Canberra, not Sydney, which is merely the largest city.
q: How many bones does an adult human have? => Usually 206; a newborn has about 270, some of which grow together.
q: Who wrote Frankenstein? => Mary Shelley; it was first published in 1818.
q: What does HTTP status 429 mean? => Too Many Requests: the client has sent more requests than the server allows in a given time.
q: What is the boiling point of water at the top of Mount Everest? => About 70 degrees Celsius, because the air pressure there is only a third of that at sea level.
q: Which planet has the most moons? => Saturn, with well over a hundred confirmed.
q: What is the difference between weather and climate? => Weather is the state of the atmosphere at a given time; climate is its average over decades.
q: What is the chemical symbol of tungsten? => W, from its other name, wolfram.
q: Which port does SSH use by default? => TCP port 22, unless `Port` in sshd_config says otherwise.
q: How many strings does a violin have? => Four, tuned to G, D, A and E.
q: Who was the first woman to win a Nobel Prize? => Marie Curie, who shared the physics prize in 1903 and won the chemistry prize in 1911.
q: What does the Latin phrase "ceteris paribus" mean? => Other things being equal. Economists use it when they change one quantity and hold all the others fixed.
q: How long does light take from the Sun to the Earth? => About eight minutes and twenty seconds.
q: In which year did the Berlin Wall fall? => In 1989, on the night of 9 November.
q: What is a palindrome? => A word or sentence that reads the same backwards, such as "level" or "never odd or even".
q: What is the largest organ of the human body? => The skin, with an area of up to about two square metres in an adult.
q: How many bits are there in a byte? => Eight, which gives 256 different values.
q: What is the name of the longest river in South America? => The Amazon, at about 6,400 kilometres.
q: Who painted The Night Watch, and where can I see it? => Rembrandt van Rijn, in 1642. It hangs in the Rijksmuseum in Amsterdam.
q: What does the command `chmod +x script.sh` do? => It makes the file executable, so that you can start it with `./script.sh`.
q: What is the plural of "octopus"? => "Octopuses" is the usual English plural; "octopodes" follows the Greek, and "octopi" rests on a mistaken Latin ending.
q: How do I convert Fahrenheit to Celsius? => Subtract 32 and multiply by five ninths. For example, 68 degrees Fahrenheit is 20 degrees Celsius.
q: Which vitamin does the skin make in sunlight? => Vitamin D, with the help of ultraviolet light.
q: What is the time complexity of merge sort? => O(n log n) in the best, average and worst case, with O(n) extra space for arrays.
q: What is the square root of 1764? => 42, since 42 times 42 is 1764.
q: Which language has the most native speakers? => Mandarin Chinese, with more than 900 million.
q: What is the difference between a fruit and a vegetable in botany? => A fruit develops from the flower's ovary and contains the seeds; vegetable is a kitchen word for other edible parts, so a tomato is botanically a fruit.
q: Why is the sky blue? => Air molecules scatter short wavelengths more strongly than long ones, so blue light reaches us from all directions, while at sunset the long path leaves mainly red.
q: What does ACID stand for in databases? => Atomicity, consistency, isolation and durability.
q: When was the first email sent? => In 1971, by Ray Tomlinson, between two computers that stood side by side.
q: What is the smallest prime number? => 2. It is also the only even one.
q: Which metal is liquid at room temperature? => Mercury, which melts at about minus 39 degrees Celsius.
q: How many time zones does Russia have? => Eleven, from Kaliningrad to Kamchatka.
q: Where does the word "robot" come from? => From the Czech "robota", forced labour; Karel Capek's play R.U.R. made it known in 1920.
q: What does "idempotent" mean for an HTTP method? => That repeating the same request has the same effect on the server as sending it once; GET, PUT and DELETE are meant to be idempotent, POST is not.
"""

PHRASES = """
en: Could you please send me the invoice by Friday?
French => Pourriez-vous m'envoyer la facture d'ici vendredi, s'il vous plaît ?
German => Könnten Sie mir die Rechnung bitte bis Freitag schicken?
Spanish => ¿Podría enviarme la factura antes del viernes, por favor?
note: This is the polite form, fit for business mail.

en: I would like a table for two near the window.
French => Je voudrais une table pour deux près de la fenêtre.
German => Ich hätte gern einen Tisch für zwei am Fenster.
Spanish => Quisiera una mesa para dos cerca de la ventana.
note: Add "for tonight" or a time if you are telephoning.

en: The train has been cancelled because of the storm.
French => Le train a été annulé à cause de la tempête.
German => Der Zug ist wegen des Sturms ausgefallen.
Spanish => El tren ha sido cancelado a causa de la tormenta.
note: The tense says that it has just happened and still matters.

en: Where is the nearest pharmacy, and is it open on Sundays?
French => Où est la pharmacie la plus proche, et est-elle ouverte le dimanche ?
German => Wo ist die nächste Apotheke, und hat sie sonntags geöffnet?
Spanish => ¿Dónde está la farmacia más cercana? ¿Abre los domingos?
note: In many towns one pharmacy is on duty at night and on Sundays; a sign at the door says which.

en: My luggage did not arrive, and I am staying for only three days.
French => Mes bagages ne sont pas arrivés et je ne reste que trois jours.
German => Mein Gepäck ist nicht angekommen, und ich bleibe nur drei Tage.
Spanish => Mi equipaje no ha llegado y solo me quedo tres días.
note: Say the flight number next, since that is what they will ask for.

en: Thank you for your patience; we will answer within two working days.
French => Merci de votre patience ; nous vous répondrons sous deux jours ouvrés.
German => Vielen Dank für Ihre Geduld; wir antworten innerhalb von zwei Werktagen.
Spanish => Gracias por su paciencia; le responderemos en un plazo de dos días hábiles.
note: The wording is usual for automatic replies from customer service.

en: I am allergic to nuts. Is there any in this dish?
French => Je suis allergique aux fruits à coque. Y en a-t-il dans ce plat ?
German => Ich bin allergisch gegen Nüsse. Sind welche in diesem Gericht?
Spanish => Soy alérgico a los frutos secos. ¿Este plato lleva alguno?
note: For a severe allergy, show the sentence in writing as well.

en: We have moved the meeting to Thursday at half past ten.
French => Nous avons déplacé la réunion à jeudi, dix heures et demie.
German => Wir haben die Besprechung auf Donnerstag um halb elf verschoben.
Spanish => Hemos cambiado la reunión al jueves a las diez y media.
note: Mind that German "halb elf" is half past ten, not half past eleven.
"""

REWRITES = """
task: Make this email more polite, please.
bad: I need the numbers today. You said Monday and it is Wednesday now. Without them I cant finish the report and then its my fault again.
good: Could you send me the figures today, please? They were due on Monday, and I cannot finish the report without them. If something is holding you up, let me know and we will find a way.
why: It asks instead of demanding; it keeps the dates, which are facts, and drops the reproach; it offers help.

task: Please rewrite this paragraph in plain English.
bad: The utilisation of the aforementioned facility is contingent upon the prior submission of the requisite documentation to the competent department, failing which access may be subject to refusal.
good: To use the room, send us the form first. Without it we may have to turn you away.
why: The doer is named; nouns made from verbs became verbs again; the condition comes first.

task: Turn these notes into two friendly sentences for our newsletter.
bad: library closed 3-14 aug. new shelves + carpet. return box open as usual. loans extended automatically to 21 aug
good: From 3 to 14 August the library is closed while we put in new shelves and a new carpet. The return box stays open as usual, and all loans are extended to 21 August without your having to do anything.
why: The date comes first because readers look for it; the second sentence removes the worry about fines.

task: Can you make this product description sound less like advertising?
bad: Our revolutionary, game-changing bottle will absolutely transform your life with its incredible insulation technology that keeps drinks unbelievably hot for an amazing twelve hours!!!
good: The bottle has two steel walls with a vacuum between them and keeps drinks hot for twelve hours. It holds 0.75 litres and weighs 380 grams when empty.
why: Adjectives were replaced by facts that a buyer can check. I assumed volume and weight, so please correct them.

task: Shorten this to under forty words without losing anything important.
bad: I am writing to you today in order to inform you of the fact that, due to circumstances which are unfortunately beyond our control, namely the illness of two of our instructors, the swimming course that was planned to begin on the 4th of May will now begin one week later, that is to say on the 11th of May, at the same time and in the same place.
good: As two of our instructors are ill, the swimming course will begin a week late, on 11 May instead of 4 May. Time and place stay the same. We apologise.
why: The opening phrases said nothing; each date now appears once.

task: Rewrite the following feedback so that it is honest but kind.
bad: Your presentation was boring. Way too many slides, you read them all out and nobody got what you wanted from us.
good: You clearly know the material. Next time I would cut the slides by half and speak freely about each, and I would begin with the decision that you need from us, because I only understood it at the end.
why: It begins with something true and good, criticises what can be changed, and says how.

task: Put this into the active voice.
bad: The samples were collected by the students on Monday. They were then dried by the technician, and the results were recorded in a notebook by the group leader.
good: The students collected the samples on Monday. The technician then dried them, and the group leader recorded the results in a notebook.
why: Each sentence now begins with the person who acts; nothing else has changed.

task: Please turn this into a formal letter of complaint.
bad: hi, the washing machine you sold me in march (order 48213) leaks!! called twice, nobody came. i want a new one or my money back
good: Dear Sir or Madam, In March I bought a washing machine from you under order number 48213. It leaks. I have reported this twice by telephone, and no technician has come. Please repair or replace it within fourteen days, or refund the price. Yours faithfully,
why: The order number and the earlier calls are evidence; a deadline with a date makes the next step easier.

task: Make this commit message better.
bad: fixed stuff, also changed the timeout thing because it broke again and removed old code that nobody uses i think
good: Raise the upload timeout to 60 s. Uploads over slow links failed after 30 s. Also remove the unused chunk cache.
why: The first line says what changed; the second says why; a third names the unrelated change, which would be better as a commit of its own.

task: Rewrite this for a reader who is twelve years old.
bad: The municipality has resolved to implement a deposit-based container return scheme with the objective of mitigating littering and incentivising circular material flows.
good: Soon you will pay a little extra for each bottle and get the money back when you return it. The town hopes that fewer bottles will end up on the street and that more of them will be used again.
why: It says what happens to the reader, and each hard word became a thing that one can see.

task: Edit this abstract so that the result comes first.
bad: Many studies have looked at reading speed. In this work we decided to investigate the question whether the font might have an influence on it. For this purpose 120 participants read six texts. It was eventually found that the difference between the fonts was below 2 percent.
good: The font changes reading speed by less than 2 percent. We measured 120 participants, each of whom read six texts in different fonts.
why: Readers decide after the first sentence whether to continue, so it now carries the finding.

task: Improve the style of this paragraph from my travel blog.
bad: We went to the market. The market was very nice. There were a lot of nice things there. We ate something nice and then we went to the harbour, which was also nice.
good: We spent the morning at the market, among towers of oranges and shouting fishmongers, and ate fried squid out of a paper cone. Then we followed the smell of tar down to the harbour.
why: One word, nice, stood in for everything that you saw. I have invented the details; put yours in their place.
"""

IDEAS = """
ask: Give me ideas for a team event for twelve people that costs little and works in the rain.
idea: A cooking evening in which pairs prepare one course each
idea: A quiz with questions that the team itself sends in
idea: A tour of a local factory, archive or waterworks
idea: A board game tournament with short rounds
idea: A repair afternoon with somebody who can solder
idea: A visit to a pottery or printing workshop
idea: A treasure hunt inside a museum
idea: A tasting of bread, cheese or tea with blind scoring
pick: I would choose the cooking evening, since it gives everyone something to do with their hands and ends with dinner.

ask: I need names for a small bakery that sells mainly sourdough bread.
idea: Slow Crust
idea: The Patient Loaf
idea: Wild Yeast
idea: Second Rise
idea: Crumb & Co.
idea: The Flour Hour
idea: Mother Dough
idea: Morning Batch
pick: "Second Rise" is short, easy to say on the telephone and tells customers what the bread is about; check that nobody in your area uses it.

ask: What could I give my grandmother for her eightieth birthday? She has everything and likes gardens and crime novels.
idea: A day at a famous garden with lunch
idea: A subscription to audio books
idea: A rose with her name on its label
idea: A recorded interview about her life, bound as a book
idea: A raised bed, built by the family
idea: A weekend in the town where her favourite novels are set
idea: A calendar with a photo from each grandchild
pick: The interview costs almost nothing, and it is the present that the family will still have in fifty years.

ask: Suggest topics for a science fair project that a thirteen-year-old can finish in three weeks at home.
idea: Which bread goes mouldy first, and does salt matter
idea: How the length of a pendulum changes its period
idea: Which colour of light makes cress grow best
idea: How well different fabrics keep water warm
idea: Whether music changes the results of a memory test
idea: How the angle of a solar cell changes its current
idea: How far paper planes fly with different wings
pick: The pendulum gives the cleanest numbers; the cress looks best on a poster.

ask: How could our town library attract more teenagers?
idea: A room in which talking and eating are allowed
idea: Longer opening hours before examinations
idea: A shelf chosen and labelled by a youth council
idea: Workshops on music production and 3D printing
idea: A manga swap once a month
idea: Fines replaced by reminders
idea: Volunteer hours that count for school
pick: Begin with the room and the youth council, because both are cheap and show that you mean it.

ask: I want to reduce screen time in the evening. What could I do instead?
idea: Cook something that takes an hour
idea: Take the same short walk every day after dinner
idea: Read ten pages on paper
idea: Learn four songs on the ukulele
idea: Write three lines about the day
idea: Phone a friend instead of texting
idea: Do a jigsaw puzzle that stays on the table
pick: Put the telephone into a drawer in another room first; without that, none of the others lasts for more than a week.

ask: List ways in which a small online shop can lower its rate of returns.
idea: Photographs with a person and a ruler for size
idea: A table of measurements of the product, not of the body
idea: Reviews that say whether an item runs large
idea: A question before the order if two sizes are in the basket
idea: Better packing for fragile goods
idea: A call to customers who return often
idea: A reason code on each return, evaluated every month
pick: The reason codes come first: without them you do not know which of the others would pay.

ask: Brainstorm side projects for a back-end developer who wants to learn about machine learning systems.
idea: A tiny inference server with batching for one small model
idea: A load generator that plots latency percentiles
idea: A semantic search over your own notes
idea: A tokenizer written from scratch
idea: A dashboard of GPU metrics
idea: A cache that recognises repeated prompts
idea: A comparison of two quantisation formats on one laptop
pick: Begin with the load generator; it is close to what you know, and you will need it to judge all the others.

ask: What warm-up games can I play in a beginners' English class for adults?
idea: Two truths and a lie
idea: Find someone who, with a list of ten things
idea: Describe a picture while a partner draws it
idea: One-minute talks about an object in your bag
idea: A chain story, one sentence each
idea: Guess the job with yes-or-no questions
pick: Describe and draw works at every level, and everybody has to speak.

ask: Help me think of a theme for a photo exhibition in our neighbourhood centre.
idea: Hands at work
idea: The street at five in the morning
idea: One square metre over a year
idea: Doors and the people behind them
idea: What we carry
idea: The oldest thing in my home
idea: Rain
pick: "The oldest thing in my home" lets people who do not see themselves as photographers take part.
"""

PLANS = """
ask: Plan a four-day trip to Lisbon for two people who like food and walking, on a moderate budget.
day: Day 1 => Arrive and drop your bags; walk through Baixa to the river; take the old tram or the stairs up to Alfama; grilled sardines for dinner
day: Day 2 => Belém in the morning for the monastery and the custard tarts; ferry across the river after lunch; sunset from Cacilhas
day: Day 3 => Train to Sintra before nine; one palace and the walled garden on foot; back for a late dinner in Campo de Ourique
day: Day 4 => Tile museum; market lunch at Arroios; last viewpoint at Graça; airport by underground
tip: Book the Sintra palace for a fixed time, wear shoes with grip, since the pavements are smooth, and expect about 90 a day for both of you without the hotel.

ask: Make me an eight-week plan to run ten kilometres. I can run three kilometres now and have three days a week.
day: Weeks 1 and 2 => Three runs of 3 km; slow enough to talk; one rest day between them
day: Weeks 3 and 4 => Runs of 3, 4 and 5 km; add five short strides at the end of one of them
day: Weeks 5 and 6 => Runs of 4, 5 and 7 km; the middle one with ten minutes at a brisk pace
day: Week 7 => Runs of 5, 5 and 8.5 km; sleep more than usual
day: Week 8 => Runs of 4 and 3 km; two days of rest; then the ten kilometres
tip: Raise the weekly distance by about ten percent on average, and drop back a week if a pain lasts for more than two days.

ask: I have to migrate a web shop from one server to another with as little downtime as possible. Draft a plan for the week.
day: Monday => Take stock of services, cron jobs, certificates and DNS records; lower the time to live to 300 seconds
day: Tuesday => Build the new server from the configuration in git; restore last night's backup; compare versions
day: Wednesday => Set up database replication to the new server; run the test suite against it
day: Thursday => Rehearse the switch with a copy; measure how long each step takes; write down the way back
day: Friday early => Announce read-only mode; stop writes; wait for replication; switch DNS; watch errors for two hours
day: Weekend => Keep the old server as a fallback; compare orders and stock; raise the time to live again
tip: Do the switch when traffic is lowest, and decide beforehand who may call it off and by when.

ask: Draw up a five-day vegetarian dinner plan for a family of four, with little cooking during the week.
day: Monday => Lentil bolognese with pasta; cook a double portion
day: Tuesday => Baked potatoes with the rest of the sauce; green salad
day: Wednesday => Chickpea curry with rice; freeze one portion
day: Thursday => Vegetable omelette with bread; tomato salad
day: Friday => Pizza from bought dough; everyone chooses a topping
tip: Cook the lentils on Sunday and wash all the salad at once; then no evening takes more than half an hour.

ask: I want to learn enough SQL in ten evenings to analyse our sales data. What should I do on each?
day: Evenings 1 and 2 => SELECT, WHERE and ORDER BY; answer ten questions about one table
day: Evenings 3 and 4 => GROUP BY, HAVING and the aggregate functions; revenue by month and product
day: Evenings 5 and 6 => Joins; customers without orders; the effect of duplicates
day: Evening 7 => Subqueries and common table expressions; rewrite yesterday's longest query
day: Evenings 8 and 9 => Window functions; running totals, ranks and the change from the month before
day: Evening 10 => A one-page report on your own data, every figure with the query that made it
tip: Work with your own data from the third evening on, and check each result against a number that you already trust.

ask: Our small choir gives its first concert in six weeks. Please make a schedule for the organisation.
day: Week 1 => Fix the programme; book the hall; name one person for each job
day: Week 2 => Design the poster; ask the local paper and the radio; register the works with the collecting society
day: Week 3 => Put up posters; open the sale of tickets; order music stands
day: Week 4 => First complete run-through; write the programme notes
day: Week 5 => Rehearse in the hall; test light and heating; print programmes
day: Week 6 => Dress rehearsal two days before; buy flowers and drinks; thank the helpers on stage
tip: Keep the evening before the concert free, because voices need it more than one more rehearsal.

ask: Set out a thirty-minute lesson on fractions for nine-year-olds who find them boring.
day: Minutes 0 to 5 => Cut a paper pizza into halves, quarters and eighths; which slice would you rather have
day: Minutes 5 to 12 => Fold strips of paper; find out which folds have the same length
day: Minutes 12 to 20 => Card game in pairs; the larger fraction wins the trick
day: Minutes 20 to 26 => Each pair invents a mistake; the next pair must find it
day: Minutes 26 to 30 => Everybody writes down one thing that two quarters are equal to
tip: Keep denominators to 2, 4 and 8 this time; thirds and fifths deserve a lesson of their own.
"""

# Each snippet: the language, what it should do, what goes wrong, the code as posted, the code as it should be, why, and
# a walk through it.
CODE = [
    {
        "lang": "python",
        "spec": "returns the n most common words of a text, ignoring case and punctuation",
        "symptom": 'It is very slow on a whole book, and "The" and "the," are counted apart.',
        "bad": """def top_words(text, n):
    words = text.split(" ")
    result = []
    for w in words:
        count = 0
        for v in words:
            if v == w:
                count += 1
        if (w, count) not in result:
            result.append((w, count))
    result.sort(key=lambda pair: pair[1], reverse=True)
    return result[:n]""",
        "good": """import re
from collections import Counter


def top_words(text, n):
    words = re.findall(r"[a-z']+", text.lower())
    return Counter(words).most_common(n)""",
        "why": "The two nested loops compare every word with every other, so the time grows with the square "
        "of the length; a Counter needs one pass. Lower-casing the text and matching letters only merges the variants.",
        "walk": [
            '`text.split(" ")` cuts at single spaces, so line breaks and punctuation stay attached to words.',
            "The inner loop counts how often each word occurs by going through the whole list again.",
            "`(w, count) not in result` searches a list, which is slow as well.",
            "At the end the pairs are sorted by their count, highest first, and the first n are returned.",
        ],
    },
    {
        "lang": "python",
        "spec": "appends an item to a list that is created afresh if none is given",
        "symptom": "The second call returns the item of the first call as well.",
        "bad": """def add_item(item, basket=[]):
    basket.append(item)
    return basket


print(add_item("apple"))
print(add_item("pear"))""",
        "good": """def add_item(item, basket=None):
    if basket is None:
        basket = []
    basket.append(item)
    return basket


print(add_item("apple"))
print(add_item("pear"))""",
        "why": "A default value is made once, when the function is defined, and the same list is then used "
        "by every call. With None as the default, each call without a basket gets a new list.",
        "walk": [
            "The function takes an item and, optionally, a list.",
            "The default list is created once and kept with the function.",
            "`append` changes that list in place, so what it holds survives until the next call.",
            "The first line prints `['apple']`, the second `['apple', 'pear']`.",
        ],
    },
    {
        "lang": "python",
        "spec": "downloads a URL with retries and a growing delay",
        "symptom": "When the server is down, the program hangs or hides the real error.",
        "bad": """import time
import urllib.request


def fetch(url):
    while True:
        try:
            return urllib.request.urlopen(url).read()
        except:
            time.sleep(1)""",
        "good": """import time
import urllib.error
import urllib.request


def fetch(url, attempts=5, timeout=10.0):
    for attempt in range(attempts):
        try:
            with urllib.request.urlopen(url, timeout=timeout) as reply:
                return reply.read()
        except (urllib.error.URLError, TimeoutError):
            if attempt == attempts - 1:
                raise
            time.sleep(2 ** attempt)""",
        "why": "The loop had no end, no timeout, and a bare except that swallowed even a keyboard "
        "interrupt. Now there are a fixed number of attempts, the wait doubles each time, and the last "
        "error reaches the caller.",
        "walk": [
            "`urlopen` opens the address without a timeout, so a silent server blocks for ever.",
            "`read()` returns the body, and the function ends there if all goes well.",
            "The bare `except` catches every error, including Ctrl-C.",
            "After one second the loop starts again, without any limit.",
        ],
    },
    {
        "lang": "sql",
        "spec": "lists all customers with the number of their orders in 2024, including those without any",
        "symptom": "Customers without orders are missing from the result.",
        "bad": """SELECT c.name, COUNT(*) AS orders
FROM customers c
LEFT JOIN orders o ON o.customer_id = c.id
WHERE o.created_at >= '2024-01-01'
  AND o.created_at < '2025-01-01'
GROUP BY c.name
ORDER BY orders DESC;""",
        "good": """SELECT c.id, c.name, COUNT(o.id) AS orders
FROM customers c
LEFT JOIN orders o ON o.customer_id = c.id
  AND o.created_at >= '2024-01-01'
  AND o.created_at < '2025-01-01'
GROUP BY c.id, c.name
ORDER BY orders DESC;""",
        "why": "A condition on the right table in WHERE removes the rows that the left join filled with "
        "NULL, so it belongs in ON. COUNT(o.id) counts only real orders, while COUNT(*) would give 1 for "
        "customers with none. Grouping by id keeps two customers with the same name apart.",
        "walk": [
            "The left join keeps every customer and fills the order's columns with NULL where there is none.",
            "WHERE then keeps only orders of 2024, and NULL does not pass, so the left join becomes an inner join.",
            "GROUP BY merges all rows with the same name.",
            "The result is sorted by the number of orders, highest first.",
        ],
    },
    {
        "lang": "javascript",
        "spec": "loads several users at once and returns them in the given order",
        "symptom": "It logs an empty array, although the requests succeed.",
        "bad": """async function loadUsers(ids) {
  const users = [];
  ids.forEach(async (id) => {
    const reply = await fetch(`/api/users/${id}`);
    users.push(await reply.json());
  });
  console.log(users);
  return users;
}""",
        "good": """async function loadUsers(ids) {
  return Promise.all(
    ids.map(async (id) => {
      const reply = await fetch(`/api/users/${id}`);
      if (!reply.ok) throw new Error(`user ${id}: HTTP ${reply.status}`);
      return reply.json();
    }),
  );
}""",
        "why": "forEach does not wait for asynchronous callbacks, so the function returns before the first "
        "reply. Promise.all waits for all of them, keeps the order of the ids, and fails if one fails; the "
        "check of reply.ok turns HTTP errors into exceptions.",
        "walk": [
            "`forEach` starts one asynchronous callback for each id and ignores the promises that they return.",
            "Each callback waits for its reply and pushes the user into the array.",
            "The log line runs at once, when nothing has arrived yet.",
            "The order in the array depends on which reply comes first.",
        ],
    },
    {
        "lang": "go",
        "spec": "sums the squares of numbers with several goroutines",
        "symptom": "The result differs from run to run, and is often 0.",
        "bad": """func sumSquares(numbers []int) int {
	total := 0
	for _, n := range numbers {
		go func() {
			total += n * n
		}()
	}
	return total
}""",
        "good": """func sumSquares(numbers []int) int {
	var wg sync.WaitGroup
	var total atomic.Int64
	for _, n := range numbers {
		wg.Add(1)
		go func(n int) {
			defer wg.Done()
			total.Add(int64(n * n))
		}(n)
	}
	wg.Wait()
	return int(total.Load())
}""",
        "why": "The function returned without waiting for the goroutines, and they changed the same "
        "variable at the same time. A WaitGroup waits for all of them and an atomic counter makes each "
        "addition safe. For such small work a plain loop would be faster still.",
        "walk": [
            "A goroutine is started for every number.",
            "All of them share the variable `total`, which is a data race.",
            "Before Go 1.22 they also shared the loop variable `n`.",
            "The function returns at once, usually before any of them has run.",
        ],
    },
    {
        "lang": "java",
        "spec": "removes all expired sessions from a list",
        "symptom": "It throws a ConcurrentModificationException.",
        "bad": """void removeExpired(List<Session> sessions, Instant now) {
    for (Session session : sessions) {
        if (session.expiresAt().isBefore(now)) {
            sessions.remove(session);
        }
    }
}""",
        "good": """void removeExpired(List<Session> sessions, Instant now) {
    sessions.removeIf(session -> session.expiresAt().isBefore(now));
}""",
        "why": "The loop uses an iterator, which notices that the list was changed behind its back. "
        "removeIf does the same job safely, and in one pass, whereas removing one by one shifts the rest of "
        "the list each time.",
        "walk": [
            "The enhanced for loop creates an iterator over the list.",
            "Each session's end is compared with the given time.",
            "`sessions.remove` changes the list directly, without telling the iterator.",
            "The next step of the loop sees that and throws the exception.",
        ],
    },
    {
        "lang": "bash",
        "spec": "deletes log files older than two weeks in a folder given as an argument",
        "symptom": "It fails on names with spaces and, when called without an argument, does something frightening.",
        "bad": """#!/bin/bash
cd $1
for f in $(find . -name *.log -mtime +14); do
  rm -rf $f
done""",
        "good": """#!/usr/bin/env bash
set -euo pipefail

folder="${1:?usage: clean-logs FOLDER}"
find "$folder" -type f -name '*.log' -mtime +14 -print -delete""",
        "why": "Without an argument, `cd` goes to the home directory and the script deletes there. Unquoted "
        "variables are split at spaces, and an unquoted `*.log` is expanded by the shell before find sees "
        "it. find can delete by itself, so the loop is not needed.",
        "walk": [
            "`cd $1` enters the folder; with no argument it goes to the home directory.",
            "`find` looks for files whose name ends in .log and that are older than fourteen days.",
            "The shell splits its output at spaces and line breaks.",
            "`rm -rf` removes each piece without asking.",
        ],
    },
    {
        "lang": "rust",
        "spec": "returns the longest of several strings",
        "symptom": "The compiler says: missing lifetime specifier.",
        "bad": """fn longest(words: &Vec<String>, fallback: &str) -> &str {
    let mut best = fallback;
    for word in words.clone() {
        if word.len() > best.len() {
            best = &word;
        }
    }
    best
}""",
        "good": """fn longest<'a>(words: &'a [String], fallback: &'a str) -> &'a str {
    words
        .iter()
        .map(String::as_str)
        .fold(fallback, |best, word| if word.len() > best.len() { word } else { best })
}""",
        "why": "The result borrows from one of two arguments, so the compiler needs a lifetime that ties "
        "them together. The clone created strings that were dropped at the end of the loop, and a reference "
        "into them could not be returned. A slice is more general than &Vec.",
        "walk": [
            "The function takes a vector of strings and a fallback, both by reference.",
            "`words.clone()` copies the whole vector, and the loop then owns each copy.",
            "`best = &word` refers to a copy that is dropped at the end of that turn.",
            "The signature does not say which argument the result borrows from.",
        ],
    },
    {
        "lang": "c",
        "spec": "copies a string into newly allocated memory",
        "symptom": "It sometimes prints rubbish at the end, and valgrind reports an invalid write.",
        "bad": """char *copy(const char *source) {
    char *target = malloc(strlen(source));
    int i = 0;
    while (source[i] != 0) {
        target[i] = source[i];
        i++;
    }
    return target;
}""",
        "good": """char *copy(const char *source) {
    size_t size = strlen(source) + 1;
    char *target = malloc(size);
    if (target == NULL)
        return NULL;
    memcpy(target, source, size);
    return target;
}""",
        "why": "A C string needs one byte more than its length, for the final zero, which the loop neither "
        "reserved nor copied. The result of malloc must be checked, and size_t is the type for sizes. The "
        "caller has to free the result.",
        "walk": [
            "`strlen` returns the length without the final zero byte, so one byte too few is reserved.",
            "The loop copies until it meets the zero and stops before copying it.",
            "The result has no end mark, so printing it runs on into whatever follows.",
            "malloc's result is used without checking it.",
        ],
    },
    {
        "lang": "typescript",
        "spec": "groups orders by the customer's country and adds up their amounts",
        "symptom": "TypeScript does not complain, yet I get NaN for some countries.",
        "bad": """function totals(orders: any[]): any {
  const result: any = {};
  for (const o of orders) {
    if (result[o.customer.country] == undefined) {
      result[o.customer.country] == 0;
    }
    result[o.customer.country] += o.amount;
  }
  return result;
}""",
        "good": """interface Order {
  customer: { country: string };
  amount: number;
}

function totals(orders: Order[]): Map<string, number> {
  const result = new Map<string, number>();
  for (const { customer, amount } of orders) {
    result.set(customer.country, (result.get(customer.country) ?? 0) + amount);
  }
  return result;
}""",
        "why": "`== 0` compares instead of assigning, so the first addition is undefined plus a number, "
        "which is NaN. The type any hid that mistake; with an interface and a Map the compiler checks every step.",
        "walk": [
            "The parameter and the result are of type any, which switches checking off.",
            "For each order the country is looked up in the result.",
            "The line with `== 0` has no effect, because it compares.",
            "Adding an amount to undefined gives NaN, and NaN stays NaN.",
        ],
    },
    {
        "lang": "python",
        "spec": "reads a CSV file of sales and returns the total for each region",
        "symptom": "It crashes on empty lines and on names that contain a comma.",
        "bad": """def totals(path):
    f = open(path)
    lines = f.readlines()
    result = {}
    for i in range(1, len(lines)):
        parts = lines[i].split(",")
        region = parts[1]
        amount = float(parts[2])
        if region in result:
            result[region] = result[region] + amount
        else:
            result[region] = amount
    return result""",
        "good": """import csv
from collections import defaultdict


def totals(path):
    result = defaultdict(float)
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            result[row["region"]] += float(row["amount"])
    return dict(result)""",
        "why": "The csv module knows about quotes and skips empty lines, and DictReader addresses columns "
        "by name, so that a new column does not shift the others. The with block closes the file even if a "
        "line cannot be parsed.",
        "walk": [
            "The file is opened and read into memory as a list of lines; it is never closed.",
            "The loop starts at 1 in order to skip the header.",
            "Each line is cut at commas, even inside quotes.",
            "The third field is added to the sum of the region in the second.",
        ],
    },
    {
        "lang": "python",
        "spec": "validates a discount and applies it to a price",
        "symptom": "It works, but the nesting makes it hard to read. Please refactor it without changing what it does.",
        "bad": """def final_price(price, discount, member):
    if price is not None:
        if price > 0:
            if discount is not None:
                if discount >= 0 and discount <= 50:
                    if member == True:
                        return price - price * discount / 100 - price * 0.05
                    else:
                        return price - price * discount / 100
                else:
                    raise ValueError("bad discount")
            else:
                return price
        else:
            raise ValueError("bad price")
    else:
        raise ValueError("no price")""",
        "good": """MEMBER_DISCOUNT = 5


def final_price(price, discount, member):
    if price is None:
        raise ValueError("no price")
    if price <= 0:
        raise ValueError("bad price")
    if discount is None:
        return price
    if not 0 <= discount <= 50:
        raise ValueError("bad discount")
    percent = discount + (MEMBER_DISCOUNT if member else 0)
    return price * (100 - percent) / 100""",
        "why": "Guard clauses deal with the bad cases first, so that the normal path stands at the left "
        "margin. The five percent got a name, and the two formulas became one. Note that a member without a "
        "discount pays the full price, as before; perhaps that was not intended. The last digit of a float "
        "may also differ, so use Decimal for money.",
        "walk": [
            "The outer two levels check that there is a price and that it is positive.",
            "Without a discount the price is returned unchanged, for members too.",
            "A discount outside 0 to 50 is an error.",
            "Members receive a further five percent of the original price.",
        ],
    },
    {
        "lang": "html",
        "spec": "shows a contact form with a name, an email address and a message",
        "symptom": 'A screen reader announces only "edit text" for each field. How do I make it accessible?',
        "bad": """<div class="form">
  Name <input id="n"><br>
  Email <input id="e"><br>
  Message <textarea id="m"></textarea><br>
  <div class="button" onclick="send()">Send</div>
</div>""",
        "good": """<form action="/contact" method="post">
  <label for="name">Name</label>
  <input id="name" name="name" autocomplete="name" required>

  <label for="email">Email</label>
  <input id="email" name="email" type="email" autocomplete="email" required>

  <label for="message">Message</label>
  <textarea id="message" name="message" rows="6" required></textarea>

  <button type="submit">Send</button>
</form>""",
        "why": "A label that is tied to its field by for and id is read out with it, and enlarges the area "
        "that one can click. A real button works with the keyboard, which a div does not. The right types "
        "bring up the right keyboard on phones.",
        "walk": [
            "The text beside each field is not connected to it.",
            "The fields have no name, so a normal form would send nothing.",
            "The div acts as a button for the mouse only.",
            "The br elements are used for the layout, which belongs in CSS.",
        ],
    },
    {
        "lang": "yaml",
        "spec": "runs a project's tests on every push for two Python versions",
        "symptom": "The workflow runs Python 3.1 instead of 3.10, and installs everything anew each time.",
        "bad": """on: push
jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      matrix:
        python: [3.10, 3.11]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{ matrix.python }}
      - run: pip install -r requirements.txt
      - run: pytest""",
        "good": """on: push
jobs:
  test:
    runs-on: ubuntu-latest
    strategy:
      fail-fast: false
      matrix:
        python: ["3.10", "3.11"]
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: ${{ matrix.python }}
          cache: pip
      - run: pip install -r requirements.txt
      - run: pytest""",
        "why": "YAML reads 3.10 without quotes as the number 3.1, so versions must be quoted. The option "
        "cache: pip keeps the downloads between runs. With fail-fast off, one failing version does not hide "
        "the result of the other.",
        "walk": [
            "The workflow starts on every push.",
            "The matrix makes one job for each version, but 3.10 is read as a number.",
            "The steps check out the code and install Python and the requirements.",
            "The last step runs the tests.",
        ],
    },
]
