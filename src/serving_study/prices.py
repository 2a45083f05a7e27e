"""What an hour of an instance costs: given, fetched from the AWS Price List when asked, or from `data/hardware/prices.csv`, always with its date.

Prices are of Linux, on demand, shared tenancy, in US dollars. What can mislead: they change (the P4 and P5 families fell by up to 44 % in June
2025), spot prices and reservations are lower, and disks and traffic come on top. An instance is rented whole, so that the cost of a token counts
all of its GPUs, used or not. Where no price is known none is made up.

    >>> from serving_study import prices
    >>> prices.known("g6.xlarge").usd_per_hour, prices.known("h200x1")
    (0.8048, None)
"""

import csv
import datetime
import functools
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from . import ceilings, paths
from .errors import HostError, ParameterError, PriceError, StoreError

TABLE = paths.DATA / "hardware" / "prices.csv"
REGION = "us-east-1"
ENDPOINTS = ("us-east-1", "eu-central-1", "ap-south-1")  # where AWS answers questions about prices, of any region
FILTERS = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used", "marketoption": "OnDemand"}
HOURLY = ("Hrs", "Hours", "Hour")


@dataclass(frozen=True)
class Price:
    """What `instance` costs an hour. `region` and `date` (of the price list, ISO) are None for a price that was given."""

    instance: str
    usd_per_hour: float
    source: str
    region: str | None = None
    date: str | None = None

    def __str__(self) -> str:
        when = f" in {self.region} on {self.date}" if self.date else ""
        return f"{self.usd_per_hour:.4g} USD an hour for {self.instance}{when} ({self.source})"

    def as_dict(self) -> dict:
        return asdict(self)

    def per_million(self, tokens_per_second: float) -> float:
        """US dollars for a million tokens at a rate."""
        return self.usd_per_hour / 3600 / tokens_per_second * 1e6


def given(host: str, usd_per_hour: float) -> Price:
    """A price that the caller knows. Raises ParameterError for one that is not above 0."""
    if not 0 < usd_per_hour < float("inf"):
        raise ParameterError("--price cannot be used", value=usd_per_hour, allowed="more than 0 US dollars an hour")
    return Price(host, usd_per_hour, "given")


def instance_of(host: str) -> str | None:
    """The instance type that a host is or has the GPUs of (`l4x1` is g6.xlarge); None where the table has none."""
    if host in ceilings.instances():
        return host
    try:
        place = ceilings.of_host(host)
    except HostError:
        return None
    return next((known.name for known in ceilings.instances().values() if known.gpu == place.gpu and known.count == place.count), None)


def known(host: str, region: str = REGION) -> Price | None:
    """The newest price of a host without asking anybody: fetched earlier, or from the table; None where there is none."""
    instance = instance_of(host)
    found = [price for price in (_kept(instance, region), table().get((instance, region))) if price]
    return max(found, key=lambda price: price.date, default=None)


@functools.cache
def table() -> dict[tuple[str, str], Price]:
    """The prices that ship, by instance type and region. Raises StoreError for a table that is damaged."""
    found = {}
    with open(TABLE, encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            if None in row or None in row.values() or not re.fullmatch(r"\d+(\.\d+)?", row["usd_per_hour"]) or not re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]) or not row["source_url"]:
                raise StoreError(f"prices.csv, line {line}: unusable price", value=",".join(map(str, row.values())), allowed="instance, region, digits, YYYY-MM-DD, a source", next=f"git diff {TABLE}")
            found[row["instance"], row["region"]] = Price(row["instance"], float(row["usd_per_hour"]), row["source_title"], row["region"], row["date"])
    return found


def fetch(host: str, region: str = REGION) -> Price:
    """Ask the AWS Price List, and keep the answer in the cache, where `known` finds it.

    Raises PriceError without an instance type, credentials, permission or network, and for an answer with no price or with several.
    """
    instance = instance_of(host)
    if instance is None:
        raise PriceError("no instance type for this host, so no price to fetch", value=host, allowed=", ".join(ceilings.instances()), next="give the price: --price USD_PER_HOUR")
    found = parse(_ask(instance, region), instance, region)
    from . import store

    store.write(_file(instance, region), found.as_dict())
    return found


def parse(answers: Iterable[str], instance: str, region: str) -> Price:
    """The price in `PriceList` entries of `pricing:GetProducts`, each a JSON document inside a string.

    A product has on-demand terms by offer, each with dimensions by rate; reservations have a dimension of 0 that is no price. Raises PriceError for
    none, and for several that differ.
    """
    found = {}
    for text in answers:
        product = json.loads(text)
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term.get("priceDimensions", {}).values():
                usd = float(dimension.get("pricePerUnit", {}).get("USD", 0))
                if usd > 0 and dimension.get("unit") in HOURLY:
                    found.setdefault(usd, product.get("publicationDate") or term.get("effectiveDate"))
    if len(found) != 1:
        what = "several on-demand prices" if found else "no on-demand price"
        value = f"{instance} in {region}" + (f": {', '.join(f'{usd:g}' for usd in sorted(found))} USD an hour" if found else "")
        raise PriceError(f"the AWS Price List has {what}", value=value, allowed="one for Linux, on demand, shared tenancy", next="another --region, or --price USD_PER_HOUR")
    [(usd, date)] = found.items()
    return Price(instance, usd, "AWS Price List", region, (date or _today())[:10])


def _ask(instance: str, region: str) -> list[str]:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    filters = FILTERS | {"instanceType": instance, "regionCode": region}
    try:
        pages = boto3.Session().client("pricing", region_name=region if region in ENDPOINTS else ENDPOINTS[0]).get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=[{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in filters.items()])
        return [text for page in pages for text in page["PriceList"]]
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise PriceError("a price was to be fetched, and there are no AWS credentials", value=str(error), allowed="credentials that may call pricing:GetProducts", next="aws configure sso, or --price USD_PER_HOUR") from None
    except ClientError as error:
        raise PriceError("the AWS Price List refused", value=f"{error.response['Error']['Code']}: {error.response['Error']['Message']}", allowed="credentials that may call pricing:GetProducts", next="aws sts get-caller-identity, or --price USD_PER_HOUR") from None
    except BotoCoreError as error:
        raise PriceError("the AWS Price List did not answer", value=str(error), allowed="a network that reaches it", next="without --fetch-price the table's price is taken; or --price USD_PER_HOUR") from None


def _file(instance: str, region: str):
    return paths.CACHE / "prices" / region / f"{instance}.json"


def _kept(instance: str | None, region: str) -> Price | None:
    file = _file(instance, region) if instance else None
    if file is None or not file.is_file():
        return None
    try:
        return Price(**json.loads(file.read_text()))
    except (json.JSONDecodeError, TypeError):
        raise StoreError("a kept price cannot be read", value=file, allowed="what fetching wrote", next=f"rm {file}") from None


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
