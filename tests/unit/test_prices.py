"""Prices: the table that ships, the Price List's nested answer, and what is said when nobody knows one. AWS is a real HTTP endpoint here."""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving_study import ceilings, prices
from serving_study.errors import ParameterError, PriceError, StoreError

# One PriceList entry of GetProducts for g6.xlarge in us-east-1, as the API nests it, its attributes shortened.
PRODUCT = {
    "product": {"productFamily": "Compute Instance", "attributes": {"instanceType": "g6.xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux", "tenancy": "Shared", "capacitystatus": "Used", "preInstalledSw": "NA"}, "sku": "QK8FD7DR3RBBKTFZ"},
    "serviceCode": "AmazonEC2",
    "terms": {
        "OnDemand": {"QK8FD7DR3RBBKTFZ.JRTCKXETXF": {"priceDimensions": {"QK8FD7DR3RBBKTFZ.JRTCKXETXF.6YS6EN2CT7": {"unit": "Hrs", "endRange": "Inf", "beginRange": "0", "description": "$0.8048 per On Demand Linux g6.xlarge Instance Hour", "appliesTo": [], "rateCode": "QK8FD7DR3RBBKTFZ.JRTCKXETXF.6YS6EN2CT7", "pricePerUnit": {"USD": "0.8048000000"}}}, "sku": "QK8FD7DR3RBBKTFZ", "effectiveDate": "2026-09-01T00:00:00Z", "offerTermCode": "JRTCKXETXF", "termAttributes": {}}},
        "Reserved": {"QK8FD7DR3RBBKTFZ.NQ3QZPMQV9": {"priceDimensions": {"QK8FD7DR3RBBKTFZ.NQ3QZPMQV9.6YS6EN2CT7": {"unit": "Hrs", "pricePerUnit": {"USD": "0.3478"}}}, "sku": "QK8FD7DR3RBBKTFZ", "offerTermCode": "NQ3QZPMQV9"}},
    },
    "version": "20260924211011",
    "publicationDate": "2026-09-24T21:10:11Z",
}


def changed(usd, **about):
    product = copy.deepcopy(PRODUCT) | about
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
        "AWS_ENDPOINT_URL_PRICING": f"http://127.0.0.1:{server.server_port}", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"), "AWS_MAX_ATTEMPTS": "1", "NO_PROXY": "127.0.0.1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield seen, answers
    server.shutdown()
    server.server_close()
    thread.join()


def test_every_price_has_a_date_a_source_and_an_instance_type_of_the_table():
    table = prices.table()
    assert {name for name, _ in table} <= set(ceilings.instances()) and {"g6.xlarge", "g5.12xlarge", "g6.12xlarge"} <= {name for name, _ in table}
    assert all(price.date and price.source and price.region == region for (_, region), price in table.items())
    # The same GPU by the hour costs more where there are more of them.
    assert table["g6.xlarge", "us-east-1"].usd_per_hour < table["g6.12xlarge", "us-east-1"].usd_per_hour


def test_a_damaged_table_is_refused(tmp_path, monkeypatch):
    file = tmp_path / "prices.csv"
    file.write_text("instance,region,usd_per_hour,date,source_title,source_url\ng6.xlarge,us-east-1,0.80 USD,2026-09-24,a,https://b\n")
    monkeypatch.setattr(prices, "TABLE", file)
    with pytest.raises(StoreError, match="prices.csv, line 2: unusable price"):
        prices.table.__wrapped__()


@pytest.mark.parametrize(("host", "instance"), [("g6.xlarge", "g6.xlarge"), ("l4x1", "g6.xlarge"), ("a10gx4", "g5.12xlarge"), ("h200x8", "p5en.48xlarge"), ("h200x1", None), ("cpu", None)])
def test_a_host_is_priced_as_the_instance_with_its_gpus(host, instance, cache):
    assert prices.instance_of(host) == instance
    assert (prices.known(host) is None) == (instance is None)
    assert prices.known(host, "mars-north-1") is None


def test_the_cost_of_a_million_tokens():
    assert prices.given("here", 3.6).per_million(100) == pytest.approx(10)
    for price in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="--price cannot be used"):
            prices.given("here", price)


def test_the_nested_answer_is_read_and_reservations_are_not_prices():
    found = prices.parse([json.dumps(PRODUCT)], "g6.xlarge", "us-east-1")
    assert (found.usd_per_hour, found.date, found.region) == (0.8048, "2026-09-24", "us-east-1")
    assert prices.parse([changed("0.0000000000"), json.dumps(PRODUCT)], "g6.xlarge", "us-east-1").usd_per_hour == 0.8048
    with pytest.raises(PriceError, match="no on-demand price: g6.xlarge in us-east-1"):
        prices.parse([changed("0.0000000000")], "g6.xlarge", "us-east-1")
    with pytest.raises(PriceError, match="several on-demand prices: g6.xlarge in us-east-1: 0.8048, 1.2 USD"):
        prices.parse([json.dumps(PRODUCT), changed("1.2")], "g6.xlarge", "us-east-1")
    with pytest.raises(PriceError, match="no on-demand price"):
        prices.parse([], "g6.xlarge", "us-east-1")


def test_a_price_is_asked_for_page_by_page_and_kept(aws):
    seen, answers = aws
    answers += [(200, {"FormatVersion": "aws_v1", "NextToken": "more", "PriceList": []}), (200, {"FormatVersion": "aws_v1", "PriceList": [changed("0.9", publicationDate="2026-11-20T00:00:00Z")]})]
    assert prices.known("l4x1", "eu-north-1") is None
    found = prices.fetch("l4x1", "eu-north-1")
    assert found.usd_per_hour == 0.9 and found.instance == "g6.xlarge" and prices.known("l4x1", "eu-north-1") == found
    asked = {item["Field"]: item["Value"] for item in seen[0]["Filters"]}
    assert asked["instanceType"] == "g6.xlarge" and asked["regionCode"] == "eu-north-1" and asked["operatingSystem"] == "Linux" and asked["tenancy"] == "Shared"
    assert seen[0]["ServiceCode"] == "AmazonEC2" and seen[1]["NextToken"] == "more" and "/us-east-1/pricing/" in seen[0]["authorization"]


def test_the_newer_of_table_and_cache_is_taken(aws):
    _, answers = aws
    answers.append((200, {"PriceList": [changed("0.7", publicationDate="2020-01-01T00:00:00Z")]}))
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
