"""Prices: the table that ships, the Price List's nested answer, and what is said when nobody knows one.

AWS is a real HTTP endpoint here.
"""

import copy
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving_study import paths
from serving_study.errors import ParameterError, PriceError, StoreError
from serving_study.hardware import ceilings, prices

RECORDED = paths.ROOT / "tests/fixtures/prices"


def recorded(name):
    """The `PriceList` of a recorded answer: JSON documents in strings."""
    return json.loads((RECORDED / f"{name}.json").read_text())["PriceList"]


PRODUCT = json.loads(recorded("g6.xlarge-us-west-2")[0])


def changed(usd, region="us-west-2", **about):
    product = copy.deepcopy(PRODUCT) | about
    product["product"]["attributes"]["regionCode"] = region
    [term] = product["terms"]["OnDemand"].values()
    [dimension] = term["priceDimensions"].values()
    dimension["pricePerUnit"]["USD"] = usd
    return json.dumps(product)


@pytest.fixture
def aws(monkeypatch, cache, tmp_path):
    """The Price List as a server that answers from a list of (status, body), with credentials in the environment."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    seen, answers = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append(body | {"authorization": self.headers["Authorization"]})
            status, answer = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, value in {
        "AWS_ENDPOINT_URL_PRICING": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_MAX_ATTEMPTS": "1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    yield seen, answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_price_has_a_date_a_source_and_an_instance_type_of_the_table():
    table = prices.table()
    assert {name for name, _ in table} <= set(ceilings.instances()) and {"g6.xlarge", "g5.12xlarge", "g6.12xlarge"} <= {
        name for name, _ in table
    }
    assert all(price.date and price.source and price.region == region for (_, region), price in table.items())
    # The same GPU by the hour costs more where there are more of them.
    assert table["g6.xlarge", "us-east-1"].usd_per_hour < table["g6.12xlarge", "us-east-1"].usd_per_hour


def test_a_damaged_table_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "prices.csv"
    file.write_text(
        "instance,region,usd_per_hour,date,source_title,source_url\ng6.xlarge,us-east-1,0.80 "
        "USD,2026-09-24,a,https://b\n"
    )
    monkeypatch.setattr(prices, "TABLE", file)
    with pytest.raises(StoreError, match="prices.csv, line 2: unusable price"):
        prices.table.__wrapped__()


@pytest.mark.parametrize(
    ("host", "instance"),
    [
        ("g6.xlarge", "g6.xlarge"),
        ("l4x1", "g6.xlarge"),
        ("a10gx4", "g5.12xlarge"),
        ("h200x8", "p5en.48xlarge"),
        ("h200x1", None),
        ("cpu", None),
    ],
)
def test_a_host_is_priced_as_the_instance_with_its_gpus(host, instance, cache):
    assert prices.instance_of(host) == instance
    assert (prices.known(host) is None) == (instance is None)
    assert prices.known(host, "mars-north-1") is None


def test_the_cost_of_a_million_tokens():
    assert prices.given("here", 3.6).per_million(100) == pytest.approx(10)
    for price in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="--price cannot be used"):
            prices.given("here", price)


ANSWERS = [
    ("g6.xlarge-us-west-2", "g6.xlarge", "us-west-2", 0.8048, "2026-09-10"),
    ("m5.large-with-reservations", "m5.large", "us-east-1", 0.096, "2020-07-09"),
    ("p5.48xlarge-without-marketoption", "p5.48xlarge", "us-east-1", 55.04, "2026-09-10"),
    ("m5.xlarge-by-type-alone", "m5.xlarge", "us-east-1", 0.192, "2026-09-10"),
]


@pytest.mark.parametrize(("name", "instance", "region", "usd", "date"), ANSWERS)
def test_recorded_answers_have_one_price_of_linux_on_demand(name, instance, region, usd, date):
    found = prices.parse(recorded(name), instance, region)
    assert (found.usd_per_hour, found.date, found.region, found.instance) == (usd, date, region, instance)
    with pytest.raises(PriceError, match=f"no on-demand price: {instance} in eu-west-1\n"):
        prices.parse(
            [text.replace("us-east-1", "us-west-1") for text in recorded(name) if "regionCode" in text],
            instance,
            "eu-west-1",
        )


def test_each_product_that_a_loose_filter_lets_through_has_another_price_or_is_another_thing():
    found = [json.loads(text) for text in recorded("m5.xlarge-by-type-alone")]
    assert (
        len(found) == 6
        and sum(
            all(product["product"]["attributes"][name] == value for name, value in prices.FILTERS.items())
            for product in found
        )
        == 2
    )
    assert prices.parse(recorded("m5.xlarge-by-type-alone"), "m5.xlarge", "us-west-2").region == "us-west-2"


def test_an_answer_without_one_price_is_refused():
    assert prices.parse([changed("0.0000000000"), json.dumps(PRODUCT)], "g6.xlarge", "us-west-2").usd_per_hour == 0.8048
    with pytest.raises(PriceError, match="no on-demand price: g6.xlarge in us-west-2"):
        prices.parse([changed("0.0000000000")], "g6.xlarge", "us-west-2")
    with pytest.raises(PriceError, match="several on-demand prices: g6.xlarge in us-west-2: 0.8048, 1.2 USD"):
        prices.parse([json.dumps(PRODUCT), changed("1.2")], "g6.xlarge", "us-west-2")
    with pytest.raises(
        PriceError, match="no on-demand price: g6.xlarge in us-west2\n.*\n  next:    did you mean us-west-2"
    ):
        prices.parse([], "g6.xlarge", "us-west2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"product": {"attributes": {}}}',
        '{"product": {"attributes": {}}, "terms": {"OnDemand": {"a": {}}}}',
        changed("free"),
    ],
)
def test_an_answer_of_another_form_is_no_price(text):
    with pytest.raises(PriceError, match="answered what cannot be read: g6.xlarge in us-west-2: "):
        prices.parse([text], "g6.xlarge", "us-west-2")


def test_a_price_is_asked_for_page_by_page_and_kept(aws):
    seen, answers = aws
    answers += [
        (200, {"FormatVersion": "aws_v1", "NextToken": "more", "PriceList": []}),
        (
            200,
            {
                "FormatVersion": "aws_v1",
                "PriceList": [changed("0.9", "eu-north-1", publicationDate="2026-11-20T00:00:00Z")],
            },
        ),
    ]
    assert prices.known("l4x1", "eu-north-1") is None
    found = prices.fetch("l4x1", "eu-north-1")
    assert found.usd_per_hour == 0.9 and found.instance == "g6.xlarge" and prices.known("l4x1", "eu-north-1") == found
    asked = {item["Field"]: item["Value"] for item in seen[0]["Filters"]}
    assert (
        asked["instanceType"] == "g6.xlarge"
        and asked["regionCode"] == "eu-north-1"
        and asked["operatingSystem"] == "Linux"
        and asked["tenancy"] == "Shared"
    )
    assert (
        seen[0]["ServiceCode"] == "AmazonEC2"
        and seen[1]["NextToken"] == "more"
        and "/us-east-1/pricing/" in seen[0]["authorization"]
    )


def test_the_newer_of_table_and_cache_is_taken(aws):
    _, answers = aws
    answers.append((200, {"PriceList": [changed("0.7", "us-east-1", publicationDate="2020-01-01T00:00:00Z")]}))
    assert prices.fetch("g6.xlarge").usd_per_hour == 0.7 and prices.known("g6.xlarge").usd_per_hour == 0.8048


def test_without_permission_credentials_network_or_instance_it_says_which(aws, monkeypatch):
    _, answers = aws
    answers.append((400, {"__type": "AccessDeniedException", "Message": "not allowed"}))
    with pytest.raises(PriceError, match="refused: AccessDeniedException: not allowed\n.*pricing:GetProducts"):
        prices.fetch("g6.xlarge")
    monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", "http://127.0.0.1:9")
    with pytest.raises(PriceError, match="did not answer"):
        prices.fetch("g6.xlarge")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PriceError, match="no AWS credentials"):
        prices.fetch("g6.xlarge")
    with pytest.raises(PriceError, match="no instance type for this host, so no price to fetch: h200x1"):
        prices.fetch("h200x1")


NOT_THERE = [
    (
        "p4d.xlarge",
        r"no such instance type \(p4d comes in one size\): p4d.xlarge\n  allowed: p4d.24xlarge has 8 "
        r"A100-40 \(40 GiB each\); p4de.24xlarge has 8 A100-80 \(79 GiB each\)\n  next:    serving-study "
        r"price p4d.24xlarge",
    ),
    (
        "p4de.12xlarge",
        "p4de comes in one size.*\n  allowed: p4de.24xlarge has 8 A100-80 .*; p4d.24xlarge has 8 A100-40 ",
    ),
    (
        "g6.2xlarge",
        "no price is known without AWS .*: g6.2xlarge in us-east-1\n  allowed: without AWS: g6.xlarge, "
        "g6.12xlarge\n  next:    did you mean g6.12xlarge or g6.xlarge",
    ),
    (
        "m5.large",
        "no price is known without AWS .*: m5.large in us-east-1\n.*\n  next:    the same command without "
        "--offline asks AWS",
    ),
    (
        "g6.xlage",
        "no instance type for this host, so no price to fetch: g6.xlage\n.*\n  next:    did you mean g6.xlarge",
    ),
    (
        "h200x1",
        r"no instance type for this host, so no price to fetch: h200x1\n  allowed: p5en.48xlarge has 8 H200 "
        r"\(140 GiB each\)",
    ),
    (
        "a100x8",
        "no instance type for this host.*: a100x8\n  allowed: p4d.24xlarge has 8 A100-40 .*; p4de.24xlarge "
        "has 8 A100-80 ",
    ),
    ("cpu", "no instance type for this host, so no price to fetch: cpu\n  allowed: g5.12xlarge, "),
]


@pytest.mark.parametrize(("host", "said"), NOT_THERE)
def test_what_does_not_exist_is_told_with_what_does(host, said, cache):
    with pytest.raises(PriceError, match=said):
        prices.offers([host], ask=False)


def test_a_family_of_one_size_has_one_row():
    assert [sum(name.startswith(f"{family}.") for name in ceilings.instances()) for family in prices.SINGLE] == [
        1,
        1,
        1,
        1,
    ]


def test_another_regions_price_is_never_taken(cache):
    [west], unreachable = prices.offers(["p4d.24xlarge"], "us-west-2", ask=False)
    assert (
        west.price == prices.table()["p4d.24xlarge", "us-west-2"]
        and west.price != prices.table()["p4d.24xlarge", "us-east-1"]
        and unreachable is None
    )
    with pytest.raises(
        PriceError,
        match=r"no price is known without AWS \(not asked: --offline\): g6.xlarge in eu-west-1\n  allowed: "
        r"without AWS: g6.xlarge in us-east-1, us-west-2\n",
    ):
        prices.offers(["l4x1"], "eu-west-1", ask=False)
    with pytest.raises(PriceError, match="g6.xlarge in us-west2\n.*\n  next:    did you mean us-west-2"):
        prices.offers(["g6.xlarge"], "us-west2", ask=False)
    found, _ = prices.offers(region="eu-west-1", ask=False)
    assert (
        [offer.instance for offer in found] == list(ceilings.instances())
        and not any(offer.price for offer in found)
        and all(offer.why for offer in found)
    )


def test_aws_is_asked_first_and_its_no_is_a_no(aws):
    seen, answers = aws
    answers += [(200, {"PriceList": recorded("g6.xlarge-us-west-2")}), (200, {"PriceList": []})]
    [offer], unreachable = prices.offers(["l4x1"], "us-west-2")
    assert (offer.price.source, offer.price.usd_per_hour, offer.usd_per_gpu_hour, unreachable) == (
        "AWS Price List",
        0.8048,
        0.8048,
        None,
    )
    # The table has a price of p4d there; AWS does not offer it any more.
    with pytest.raises(PriceError, match="the AWS Price List has no on-demand price: p4d.24xlarge in us-west-2"):
        prices.offers(["p4d.24xlarge"], "us-west-2")
    assert len(seen) == 2
    answers += [(200, {"PriceList": recorded("m5.large-with-reservations")})]
    [other], _ = prices.offers(["m5.large"])
    assert (other.gpu, other.gpus, other.usd_per_gpu_hour, other.price.usd_per_hour) == (None, None, None, 0.096)


def test_one_refusal_is_enough_and_the_newest_known_price_is_taken(aws, monkeypatch):
    seen, answers = aws
    answers += [(200, {"PriceList": [changed("0.75", "us-east-1", publicationDate="2026-11-20T00:00:00Z")]})]
    prices.fetch("g6.xlarge")
    answers += [(400, {"__type": "AccessDeniedException", "Message": "not allowed"})]
    found, unreachable = prices.offers(["g6.xlarge", "g6.12xlarge", "p5.48xlarge"])
    assert unreachable == "it refused (AccessDeniedException: not allowed)" and len(seen) == 2
    assert [(offer.price.usd_per_hour, offer.price.date) for offer in found] == [
        (0.75, "2026-11-20"),
        (4.6016, "2026-09-24"),
        (55.04, "2026-09-24"),
    ]
    assert found[1].usd_per_gpu_hour == pytest.approx(4.6016 / 4)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(
        PriceError, match="no price is known without AWS .*: g6.xlarge in eu-west-1\n.*\n  next:    aws configure sso"
    ):
        prices.offers(["g6.xlarge"], "eu-west-1")


def test_a_silent_server_is_not_waited_for_long(aws, monkeypatch):
    monkeypatch.setattr(prices, "TIMEOUTS", {"connect_timeout": 0.1, "read_timeout": 0.1})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", f"http://127.0.0.1:{silent.getsockname()[1]}")
        [offer], unreachable = prices.offers(["g6.xlarge"])
    assert unreachable.startswith("it did not answer (Read timeout") and offer.price.date == "2026-09-24"


def test_a_part_of_an_instance_has_its_share_of_the_price_and_says_so(cache):
    whole, part = prices.known("p5en.48xlarge"), prices.share("h200x2")
    assert part.usd_per_hour == pytest.approx(whole.usd_per_hour / 4) and part.date == whole.date
    assert part.source.startswith("2 of 8 GPUs of p5en.48xlarge, which is rented whole; ")
    assert (
        prices.share("cpu") is None and prices.share("h200x8") is None and prices.share("h200x1", "eu-west-1") is None
    )
    assert prices.share("l4x2").source.startswith("2 of 4 GPUs of g6.12xlarge")
